//! The CPUs that handle an interrupt. Interrupts get new numbers after a reboot, or when a card is recreated: an
//! interrupt is identified by its name, and its number is only a hint.

use serde::{Deserialize, Serialize};

use super::{Kind, Lasting, Step};
use crate::change::Content;
use crate::error::Unknown;
use crate::host::Host;
use crate::script::quote;

/// An interrupt by its name, such as `eth0-TxRx-0`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupt {
    /// Its name in `/proc/interrupts`.
    pub name: String,
    /// Its number when it was changed.
    pub number: u32,
}

/// The path of an interrupt's CPUs.
pub(crate) fn affinity(number: u32) -> String {
    format!("/proc/irq/{number}/smp_affinity_list")
}

impl Interrupt {
    /// The same interrupt with its current number. `None` if there is none, or several.
    fn now(&self, host: &Host) -> Option<Interrupt> {
        let table = host.text("/proc/interrupts").ok()?;
        let named = table.lines().filter_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let is_it = rest.split_whitespace().last()? == self.name;
            Some(number.trim().parse::<u32>().ok()?).filter(|_| is_it)
        });
        let numbers: Vec<u32> = named.collect();
        let number = match numbers.as_slice() {
            numbers if numbers.contains(&self.number) => self.number,
            [number] => *number,
            _ => return None,
        };
        Some(Interrupt { name: self.name.clone(), number })
    }
}

impl Kind for Interrupt {
    fn name(&self) -> String {
        format!("CPUs of interrupt {} ({})", self.number, self.name)
    }

    fn is_namespaced(&self) -> bool {
        false
    }

    fn read(&self, host: &Host) -> Result<Content, Unknown> {
        let now = self.now(host).ok_or_else(|| Unknown(self.ended()))?;
        match host.bytes(&affinity(now.number))? {
            None => Err(Unknown(format!("there is no {} here", affinity(now.number)))),
            bytes => Ok(Content::of(bytes)),
        }
    }

    fn write(&self, host: &Host, to: &Content) -> Result<(), String> {
        let now = self.now(host).ok_or_else(|| self.ended())?;
        match to.bytes() {
            Some(bytes) => host.write(&affinity(now.number), bytes),
            None => Err(format!("{} always has a value", self.name())),
        }
    }

    fn steps(&self, to: &Content) -> Result<Vec<Step>, String> {
        match to.bytes() {
            Some(bytes) => Ok(vec![Step::Write { path: affinity(self.number), bytes: bytes.to_vec() }]),
            None => Err(format!("{} always has a value", self.name())),
        }
    }

    fn holds_in_shell(&self, ours: &Content) -> Option<String> {
        let holds = format!("holds {} {}", quote(&ours.line()), affinity(self.number));
        Some(format!("{} && {holds}", self.exists_in_shell()))
    }

    fn lasting(&self, _: &Content) -> Lasting {
        Lasting::Not("interrupt numbers change from boot to boot")
    }

    fn gone(&self, host: &Host) -> Option<String> {
        self.now(host).is_none().then(|| self.ended())
    }
}

impl Interrupt {
    /// A shell condition that is true while its number is the same.
    pub(crate) fn exists_in_shell(&self) -> String {
        format!("grep -q {} /proc/interrupts", quote(&format!("^ *{}:.* {}$", self.number, self.name)))
    }

    fn ended(&self) -> String {
        format!("interrupt {} no longer exists", self.name)
    }
}
