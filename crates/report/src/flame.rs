//! Profiles as a terminal's table, a page with a flame graph, our JSON, folded lines and speedscope's JSON.

mod folded;
mod json;
mod page;
mod speedscope;
mod table;
mod unit;

pub use folded::folded;
pub use json::{from_json, to_json};
pub use page::{comparison_page, page};
pub use speedscope::speedscope;
pub use table::{comparison_table, table};

/// Scripted profiles for the tests of this module.
#[cfg(test)]
pub(crate) mod scripted {
    use std::time::Duration;

    use flatout_profile::{Clock, Frame, Kind, Profile, Stacks};

    /// A server that answered `request_count` requests, whose sends pass a firewall or not.
    pub(crate) fn profile(request_count: Option<f64>, netfilter_weight: u64) -> Profile {
        let mut stacks = Stacks::default();
        let root = || Frame::new(Kind::Root, "server");
        let main = || Frame::new(Kind::User, "main");
        let send = || Frame::new(Kind::Kernel, "tcp_sendmsg");
        stacks.add([root(), main()], 1_000_000);
        stacks.add([root(), main(), Frame::new(Kind::Inlined, "wire::head::parse")], 2_000_000);
        stacks.add([root(), main(), send()], 4_000_000);
        if netfilter_weight > 0 {
            stacks.add([root(), main(), send(), Frame::new(Kind::Kernel, "nf_hook_slow")], netfilter_weight);
        }
        Profile {
            what: "server </script><b> (process 7)".to_owned(),
            clock: Clock::CpuTime,
            rate_hz: 499,
            time: Duration::from_millis(10_040),
            cpu_count: 2,
            sample_count: 4000,
            lost_count: 3,
            idle_weight: 9_000_000_000,
            request_count,
            notes: vec!["a note".to_owned()],
            stacks,
        }
    }
}
