//! What a tuning is. One that is new is one file under `tunings/` and one line in its list.

use crate::change::Change;
use crate::error::{Error, Unknown};
use crate::host::Host;
use crate::served::Served;

/// One thing about a machine that costs requests something.
///
/// It reads and advises; it never writes. What it wants done comes as data, so that applying and undoing it
/// ([`Session`](crate::Session)), keeping it over a reboot ([`plan`](crate::plan())) and writing it down as a script
/// ([`script`](crate::script())) are done once for all.
pub trait Tuning: Sync {
    /// What is always true of it.
    fn about(&self) -> &About;

    /// How it is now.
    ///
    /// # Errors
    /// It cannot be known here; why.
    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown>;

    /// What should be done about it.
    ///
    /// # Errors
    /// It cannot be known here; why.
    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown>;

    /// What it takes for it to be advised.
    fn proof(&self) -> Proof {
        Proof::Setting
    }

    /// The counter that proves it took: drivers accept settings and ignore them.
    ///
    /// # Errors
    /// It cannot be known here; why.
    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown>;
}

/// What it takes for a tuning to be advised, beyond that it would change something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// Nothing: how it is set is what costs.
    Setting,
    /// That its counter moves: as long as nothing overflows, more room is worth nothing.
    Counter,
    /// A measurement on this machine, as a climb makes it: what it gains differs from one to the other.
    Measurement,
    /// Somebody who needs just this.
    Asking,
}

/// What is always true of a tuning.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// Its name, as one types it.
    pub name: &'static str,
    /// Why one would, in a line.
    pub reason: &'static str,
    /// More of it, for its manual page.
    pub detail: &'static str,
    /// Where that is known from.
    pub source: &'static str,
    /// What it reaches.
    pub scope: Scope,
    /// What it risks.
    pub risk: Risk,
    /// What is lost by it; empty where nothing is.
    pub lost: &'static str,
    /// The most requests a second that a published measurement gained by it; gains overlap and differ. Only for order.
    pub gain_percent: f32,
    /// What a measurement of it needs.
    pub needs: Needs,
}

/// What a tuning reaches.
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

/// What a tuning risks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Risk {
    /// Nothing breaks; at worst it costs what it was to gain.
    Low,
    /// Something else may suffer: its name must be typed.
    Medium,
    /// Something may break.
    High,
    /// Protection is lost: it must also be accepted in so many words.
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
        /// What is to become of it, in a line.
        what: String,
        /// The changes.
        changes: Vec<Change>,
        /// What has to be done afterwards for it to take; empty where nothing has.
        then: String,
    },
    /// Something that only somebody else can do.
    ByHand(String),
}

/// A counter or gauge, by its own name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counter {
    /// What the kernel calls it.
    pub name: String,
    /// Its value now.
    pub value: u64,
}

/// What somebody agreed to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Consent {
    /// The tuning's name was typed.
    pub is_named: bool,
    /// The loss of protection was accepted.
    pub accepts_risk: bool,
}

impl Advice {
    /// Changes that take at once; where there are none, all is fine.
    pub(crate) fn change(what: impl Into<String>, changes: Vec<Change>) -> Advice {
        match changes.is_empty() {
            true => Advice::Fine,
            false => Advice::Change { what: what.into(), changes, then: String::new() },
        }
    }

    /// In a line; nothing where all is fine.
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
    /// What is missing, with what would be lost.
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
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Risk::Low => "low",
            Risk::Medium => "medium",
            Risk::High | Risk::Grave => "high",
        }
    }
}

impl Scope {
    /// In a word.
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
    /// Whether the path by which this server is reached can show an effect.
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
