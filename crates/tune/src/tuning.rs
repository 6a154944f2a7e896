//! The interface of a tuning. A new one is one file under `tunings/` and one line in its list.

use crate::change::Change;
use crate::error::{Error, Unknown};
use crate::host::Host;
use crate::served::Served;

/// One property of a machine that makes requests more expensive.
///
/// It reads and advises; it never writes. It describes changes as data, so that applying and undoing
/// ([`Session`](crate::Session)), making persistent ([`plan`](crate::plan())) and writing a script
/// ([`script`](crate::script())) are each implemented once, for all of them.
pub trait Tuning: Sync {
    /// Its constant properties.
    fn about(&self) -> &About;

    /// Its current value.
    ///
    /// # Errors
    /// It cannot be read here, and why.
    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown>;

    /// What should be done.
    ///
    /// # Errors
    /// It cannot be read here, and why.
    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown>;

    /// The kernel parameter that it sets, if it is one.
    fn parameter(&self) -> Option<&'static str> {
        None
    }

    /// The evidence that it needs to be suggested.
    fn proof(&self) -> Proof {
        Proof::Setting
    }

    /// The counter that proves its effect: drivers accept settings and ignore them.
    ///
    /// # Errors
    /// It cannot be read here, and why.
    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown>;
}

/// The evidence that a tuning needs to be suggested, besides that it would change something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// None: the setting itself is what costs.
    Setting,
    /// That its counter increases: as long as nothing overflows, more room has no effect.
    Counter,
    /// A measurement on this machine, as in a climb: its gain differs between machines.
    Measurement,
    /// A user who needs exactly this.
    Asking,
}

/// The constant properties of a tuning.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// Its name on the command line.
    pub name: &'static str,
    /// The reason for it, in a line.
    pub reason: &'static str,
    /// More about it, for `explain`.
    pub detail: &'static str,
    /// The source of this knowledge.
    pub source: &'static str,
    /// What it affects.
    pub scope: Scope,
    /// Its risk.
    pub risk: Risk,
    /// Its drawback; empty if there is none.
    pub lost: &'static str,
    /// The largest published gain in requests per second, in percent; gains overlap and differ. Used only for
    /// ordering.
    pub gain_percent: f32,
    /// What a measurement of its effect needs.
    pub needs: Needs,
}

/// What a tuning affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// One process or its sockets.
    Process,
    /// One network namespace.
    Namespace,
    /// One network device.
    Device,
    /// The whole host.
    Host,
    /// The whole host, from its next boot on.
    Reboot,
}

/// The risk of a tuning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Risk {
    /// Nothing breaks; at worst it costs performance.
    Low,
    /// Something else may suffer: its name must be typed.
    Medium,
    /// Something may break.
    High,
    /// Protection is reduced: this must also be accepted explicitly.
    Grave,
}

/// What a measurement of a tuning's effect needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Any path, also loopback.
    AnyPath,
    /// A path through a network device; over loopback it does nothing.
    Card,
    /// A reboot between two measurements.
    Reboot,
}

/// What should be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Advice {
    /// Nothing.
    Fine,
    /// These changes, which we can make.
    Change {
        /// A one-line description.
        what: String,
        /// The changes.
        changes: Vec<Change>,
        /// What to do afterwards for it to take effect; empty if nothing.
        then: String,
    },
    /// Something that only the user can do.
    ByHand(String),
}

/// A counter or gauge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counter {
    /// Its name in the kernel.
    pub name: String,
    /// Its value now.
    pub value: u64,
}

/// What the user has agreed to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Consent {
    /// The tuning was named explicitly.
    pub is_named: bool,
    /// Reduced protection was accepted.
    pub accepts_risk: bool,
}

impl Advice {
    /// Changes that take effect at once; none means that all is fine.
    pub(crate) fn change(what: impl Into<String>, changes: Vec<Change>) -> Advice {
        match changes.is_empty() {
            true => Advice::Fine,
            false => Advice::Change { what: what.into(), changes, then: String::new() },
        }
    }

    /// As one line; `None` if all is fine.
    pub fn text(&self) -> Option<&str> {
        match self {
            Advice::Fine => None,
            Advice::Change { what, .. } => Some(what),
            Advice::ByHand(what) => Some(what),
        }
    }
}

impl Consent {
    /// Whether this tuning may be applied.
    ///
    /// # Errors
    /// What is missing, with the drawback.
    pub fn permits(self, about: &About) -> Result<(), Error> {
        let name = about.name;
        let missing = match about.risk {
            Risk::Low => None,
            Risk::Grave if !self.accepts_risk => Some(format!("{name} --accept-risk")),
            Risk::Medium | Risk::High | Risk::Grave => (!self.is_named).then(|| name.to_owned()),
        };
        missing.map_or(Ok(()), |typed| {
            Err(Error::Usage(format!(
                "{name}: {} risk: {}; if that is acceptable here: flatout tune apply {typed}",
                about.risk.name(),
                about.lost
            )))
        })
    }
}

impl Risk {
    /// As one word.
    pub fn name(self) -> &'static str {
        match self {
            Risk::Low => "low",
            Risk::Medium => "medium",
            Risk::High | Risk::Grave => "high",
        }
    }
}

impl Scope {
    /// As one word.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Process => "process",
            Scope::Namespace => "namespace",
            Scope::Device => "device",
            Scope::Host => "host",
            Scope::Reboot => "reboot",
        }
    }
}

impl Needs {
    /// Whether an effect can be measured on the path to this server.
    pub fn are_met(self, served: &Served) -> bool {
        match self {
            Needs::AnyPath => true,
            Needs::Card => served.is_by_card(),
            Needs::Reboot => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunings::find;

    #[test]
    fn consent_grows_with_the_risk() {
        let about = |name: &str| find(name).unwrap().about();
        let (bare, named) = (Consent::default(), Consent { is_named: true, accepts_risk: false });
        let all = Consent { is_named: true, accepts_risk: true };
        assert!(bare.permits(about("somaxconn")).is_ok());
        assert!(bare.permits(about("qdisc")).is_err() && named.permits(about("qdisc")).is_ok());
        for grave in ["mitigations", "audit", "seccomp", "firewall"] {
            let Err(Error::Usage(message)) = named.permits(about(grave)) else { panic!("{grave}") };
            assert!(message.contains(about(grave).lost) && message.contains("--accept-risk"), "{message}");
            assert!(all.permits(about(grave)).is_ok());
        }
    }
}
