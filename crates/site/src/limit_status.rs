//! What the limits of a route have decided about a request, in nginx's words: for `$limit_req_status` and `$limit_conn_status`.

/// A decision. Of several limits, the later one in this order counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LimitStatus {
    /// There is no limit.
    #[default]
    None,
    Passed,
    DelayedDryRun,
    Delayed,
    RejectedDryRun,
    Rejected,
}

/// The decisions about a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LimitStatuses {
    /// Of its rates.
    pub(crate) rates: LimitStatus,
    /// Of its limits of concurrent requests.
    pub(crate) concurrency: LimitStatus,
}

/// Whether limits of a kind have counted a request. Those of a later route do not count it again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Count {
    #[default]
    No,
    /// Only limits that are dry runs.
    DryRun,
    Yes,
}

/// The same by kind.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) rates: Count,
    /// Rates that depend on the user.
    pub(crate) user_rates: Count,
    pub(crate) concurrency: Count,
}

impl Counts {
    pub(crate) const ALL: Counts =
        Counts { rates: Count::Yes, user_rates: Count::Yes, concurrency: Count::Yes };
}

impl Count {
    /// Whether a limit still counts the request.
    pub(crate) fn admits(self, is_dry_run: bool) -> bool {
        self == Count::No || self == Count::DryRun && !is_dry_run
    }

    /// A limit has counted it.
    pub(crate) fn add(&mut self, is_dry_run: bool) {
        *self = (*self).max(if is_dry_run { Count::DryRun } else { Count::Yes });
    }
}

impl LimitStatus {
    /// Notes a decision of one more limit.
    pub(crate) fn add(&mut self, decision: LimitStatus) {
        *self = (*self).max(decision);
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            LimitStatus::None => "",
            LimitStatus::Passed => "PASSED",
            LimitStatus::DelayedDryRun => "DELAYED_DRY_RUN",
            LimitStatus::Delayed => "DELAYED",
            LimitStatus::RejectedDryRun => "REJECTED_DRY_RUN",
            LimitStatus::Rejected => "REJECTED",
        }
    }
}
