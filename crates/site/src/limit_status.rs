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
