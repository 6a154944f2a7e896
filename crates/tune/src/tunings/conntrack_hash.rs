//! The connection tracking table: one bucket per connection.

use crate::change::Change;
use crate::counters::conntrack;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// The buckets of the connection tracking table.
pub(super) struct ConntrackHash;

const ABOUT: About = About {
    name: "conntrack-hash",
    reason: "in a connection table with too few buckets a lookup walks a long list",
    detail: "Each connection has two entries, one for each direction. With as many buckets as connections may be \
             tracked, a bucket holds at most two on average. A bucket takes 8 bytes. It is a parameter of the module \
             and can be set only from the first network namespace. Apply `conntrack-max` first. Leaving the served \
             port untracked (`conntrack`) is better.",
    source: "nf_conntrack-sysctl: nf_conntrack_buckets",
    scope: Scope::Host,
    risk: Risk::Low,
    lost: "",
    gain_percent: 0.65,
    needs: Needs::AnyPath,
};

impl Tuning for ConntrackHash {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, _: &Served) -> Result<String, Unknown> {
        Ok(format!("{} buckets for {}", host.number::<u64>(BUCKETS)?, host.number::<u64>(MAX)?))
    }

    fn advice(&self, host: &Host, _: &Served) -> Result<Advice, Unknown> {
        // If the link cannot be read, there is nothing to check: such a user may not change the table either.
        if let (Some(ours), Some(first)) = (host.link("/proc/self/ns/net"), host.link("/proc/1/ns/net"))
            && ours != first
        {
            return Err(Unknown("it can be set only from the first network namespace".to_owned()));
        }
        let (buckets, wanted) = (host.number::<u64>(BUCKETS)?, host.number::<u64>(MAX)?.min(BUCKETS_MAX));
        let is_used = host.number::<u64>(COUNT)? > 0;
        Ok(match is_used && buckets < wanted {
            true => Advice::change(
                format!("{wanted} buckets"),
                vec![Change::text(Setting::file(BUCKETS), wanted)],
            ),
            false => Advice::Fine,
        })
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        conntrack(host, "chainlength")
    }
}

const BUCKETS: &str = "/sys/module/nf_conntrack/parameters/hashsize";
const MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";

/// The most buckets to suggest: 8 MiB.
const BUCKETS_MAX: u64 = 1 << 20;
