//! What a controller has published, and the messages with it: each is made once, however many data planes get it.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use serde::Serialize;

use super::{Message, PLAN_BYTES_MAX, frame};
use crate::data::PlanData;

/// What data planes are to serve.
#[derive(Clone)]
pub(crate) struct Published {
    /// Counts plans and changes of servers; 0: nothing is published yet.
    pub(crate) number: u64,
    /// Its number when anything but servers changed last.
    pub(crate) plan_number: u64,
    /// The plan now, with the servers of now.
    pub(crate) plan: Arc<PlanData>,
    /// The message with the whole plan, once a data plane has needed it.
    whole: Arc<OnceLock<Frame>>,
    /// The message with what is new since the plan of this number: the first one that was needed, because most data planes have the same.
    difference: Arc<OnceLock<(u64, Frame)>>,
}

/// The bytes of a message; if it is too long, why.
type Frame = Result<Vec<u8>, String>;

/// [`Message::Plan`], without copying the plan.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum PlanMessage<'p> {
    Plan { number: u64, plan: &'p PlanData },
}

impl Published {
    pub(crate) fn new(number: u64, plan_number: u64, plan: PlanData) -> Published {
        let (whole, difference) = (Arc::default(), Arc::default());
        Published { number, plan_number, plan: Arc::new(plan), whole, difference }
    }

    /// The message with the whole plan.
    ///
    /// # Errors
    /// It is too long.
    pub(crate) fn whole(&self) -> Result<&[u8], String> {
        let message = || frame(&PlanMessage::Plan { number: self.number, plan: &self.plan }, PLAN_BYTES_MAX);
        self.whole.get_or_init(message).as_deref().map_err(String::clone)
    }

    /// The message with what is new since a former plan, which was published with this number.
    ///
    /// # Errors
    /// It is too long.
    pub(crate) fn difference(&self, since: u64, former: &PlanData) -> Result<Cow<'_, [u8]>, String> {
        let (known, message) = self.difference.get_or_init(|| (since, self.make_difference(since, former)));
        if *known == since {
            return message.as_deref().map(Cow::Borrowed).map_err(String::clone);
        }
        self.make_difference(since, former).map(Cow::Owned)
    }

    fn make_difference(&self, since: u64, former: &PlanData) -> Frame {
        let number = self.number;
        let message = match since >= self.plan_number {
            true => Message::Servers { number, upstreams: former.servers_in(&self.plan) },
            false => Message::Changes { number, since, changes: Box::new(former.changes_to(&self.plan)) },
        };
        frame(&message, PLAN_BYTES_MAX)
    }
}

impl Default for Published {
    fn default() -> Published {
        Published::new(0, 0, PlanData::empty())
    }
}

#[cfg(test)]
mod tests {
    use super::super::receive;
    use super::*;

    #[test]
    fn differences_are_those_since_the_plan_that_a_data_plane_has() {
        let (empty, published) = (PlanData::empty(), Published::new(7, 5, PlanData::empty()));
        let since = |number: u64| {
            let message = published.difference(number, &empty).unwrap();
            let is_made_once = matches!(message, Cow::Borrowed(_));
            (receive::<Message>(&mut &message[..], PLAN_BYTES_MAX).unwrap(), is_made_once)
        };
        let changes = |since: u64| {
            let changes = Box::new(empty.changes_to(&empty));
            Message::Changes { number: 7, since, changes }
        };
        let servers = Message::Servers { number: 7, upstreams: Default::default() };
        assert_eq!(since(4), (changes(4), true));
        assert_eq!(since(4), (changes(4), true));
        assert_eq!(since(3), (changes(3), false));
        assert_eq!(since(5), (servers.clone(), false));
        assert_eq!(since(6), (servers, false));
    }
}
