//! Which data planes have which plan, and what the statuses of objects say about it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatout_observe::metrics::{Family, Source};
use serde_json::Value;

use super::Acknowledgement;
use super::published::Published;
use crate::condition::StatusUpdate;

/// Data planes of one controller; each has a thread here.
pub(crate) const DATA_PLANES_MAX: usize = 256;

/// What is published, and who has it.
#[derive(Default)]
pub(crate) struct Board {
    state: Mutex<BoardState>,
    has_changed: Condvar,
}

#[derive(Default)]
struct BoardState {
    published: Published,
    /// Why the objects cannot be published; the plan before is.
    fault: Option<String>,
    planes: BTreeMap<u64, PlaneState>,
    planes_joined: u64,
    /// The newest plan that any data plane has applied.
    applied: u64,
}

/// A data plane that is connected.
struct PlaneState {
    /// Its name and address.
    name: String,
    /// The plan that it has applied.
    applied: u64,
    /// It does not have that one on its disk yet.
    is_writing: bool,
    refusal: Option<String>,
    notes: Vec<String>,
}

/// Whether the current plan is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Programming {
    /// By all data planes, with what some of them cannot do.
    Done(String),
    /// Not yet.
    Pending(String),
    /// Not by all: it was refused.
    Refused(String),
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, BoardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn publish(&self, published: Published) {
        let mut state = self.lock();
        state.published = published;
        state.fault = None;
        self.has_changed.notify_all();
    }

    /// The plan before stays, for this reason.
    pub(crate) fn set_fault(&self, why: String) {
        self.lock().fault = Some(why);
    }

    pub(crate) fn published(&self) -> Published {
        self.lock().published.clone()
    }

    /// Waits until something other than this number is published, at most for this time.
    pub(crate) fn wait(&self, number: u64, time_max: Duration) -> Published {
        let waited =
            self.has_changed.wait_timeout_while(self.lock(), time_max, |it| it.published.number == number);
        waited.unwrap_or_else(PoisonError::into_inner).0.published.clone()
    }

    /// Adds a data plane. `None`: there are too many.
    pub(crate) fn join(&self, name: &str, at: SocketAddr) -> Option<u64> {
        let mut state = self.lock();
        if state.planes.len() >= DATA_PLANES_MAX {
            return None;
        }
        state.planes_joined += 1;
        let plane = PlaneState {
            name: format!("{name} ({at})"),
            applied: 0,
            is_writing: false,
            refusal: None,
            notes: Vec::new(),
        };
        let id = state.planes_joined;
        state.planes.insert(id, plane);
        Some(id)
    }

    pub(crate) fn leave(&self, id: u64) {
        self.lock().planes.remove(&id);
    }

    /// The result of a plan or of servers at a data plane.
    pub(crate) fn acknowledge(&self, id: u64, plan_number: u64, result: &Acknowledgement) {
        let mut state = self.lock();
        let Some(plane) = state.planes.get_mut(&id) else { return };
        plane.refusal.clone_from(&result.refusal);
        plane.notes.clone_from(&result.notes);
        plane.is_writing = result.is_writing;
        if result.refusal.is_none() {
            plane.applied = plan_number;
            state.applied = state.applied.max(plan_number);
        }
    }

    /// Whether the current plan is served. Data planes that are not connected serve the last plan that they had, and do not count.
    pub(crate) fn programming(&self) -> Programming {
        let state = self.lock();
        if let Some(why) = &state.fault {
            return Programming::Refused(format!("the plan before stays in use: {why}"));
        }
        let refused = state.planes.values().find_map(|it| Some((it, it.refusal.as_ref()?)));
        if let Some((plane, why)) = refused {
            return Programming::Refused(format!("data plane {} serves the plan before: {why}", plane.name));
        }
        let number = state.published.plan_number;
        let (count, applied) =
            (state.planes.len(), state.planes.values().filter(|it| it.applied >= number).count());
        if applied < count {
            return Programming::Pending(format!("{applied} of {count} data planes have applied it"));
        }
        if state.applied < number {
            return Programming::Pending("no data plane is connected".to_owned());
        }
        let notes = |it: &PlaneState| match it.notes.is_empty() {
            true => None,
            false => Some(format!("data plane {}: {}", it.name, it.notes.join(", "))),
        };
        let notes = state.planes.values().filter_map(notes).collect::<Vec<_>>().join("; ");
        match (state.planes.values().filter(|it| it.is_writing).count(), notes.as_str()) {
            (0, _) => Programming::Done(notes),
            (writing, "") => {
                Programming::Pending(format!("{writing} of {count} data planes write it to their disks"))
            }
            (writing, notes) => Programming::Pending(format!(
                "{writing} of {count} data planes write it to their disks; {notes}"
            )),
        }
    }
}

/// Figures of a controller.
impl Source for Board {
    fn collect(&self, into: &mut Vec<Family>) {
        let state = self.lock();
        let number = state.published.plan_number;
        let behind = state.planes.values().filter(|it| it.applied < number || it.refusal.is_some()).count();
        into.extend([
            Family::gauge("flatout_data_planes", "Connected data planes", state.planes.len() as u64),
            Family::gauge(
                "flatout_data_planes_behind",
                "Connected data planes that do not serve the current plan",
                behind as u64,
            ),
            Family::counter(
                "flatout_plans_published",
                "Plans, and changes of endpoints, for data planes",
                state.published.number,
            ),
        ]);
    }
}

/// The statuses of objects, in which gateways and listeners are programmed only if data planes serve the plan.
pub(crate) fn with_programming(
    statuses: &[Arc<StatusUpdate>],
    programming: &Programming,
) -> Vec<Arc<StatusUpdate>> {
    let adjusted = |it: &Arc<StatusUpdate>| {
        let mut update = it.clone();
        if matches!(it.kind.name, "Gateway" | "ListenerSet") {
            let status = &mut Arc::make_mut(&mut update).status;
            adjust(status.get_mut("conditions"), programming);
            let listeners = status.get_mut("listeners").and_then(Value::as_array_mut);
            for listener in listeners.into_iter().flatten() {
                adjust(listener.get_mut("conditions"), programming);
            }
        }
        update
    };
    statuses.iter().map(adjusted).collect()
}

fn adjust(conditions: Option<&mut Value>, programming: &Programming) {
    let is_programmed = |it: &&mut Value| it["type"] == "Programmed" && it["status"] == "True";
    let list = conditions.and_then(Value::as_array_mut);
    for condition in list.into_iter().flatten().filter(is_programmed) {
        let (status, reason, message) = match programming {
            Programming::Done(notes) if notes.is_empty() => continue,
            Programming::Done(notes) => ("True", "Programmed", notes),
            Programming::Pending(why) => ("False", "Pending", why),
            Programming::Refused(why) => ("False", "Invalid", why),
        };
        condition["status"] = status.into();
        condition["reason"] = reason.into();
        condition["message"] = message.as_str().into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::PlanData;
    use crate::kinds::ObjectKey;
    use crate::objects::find_kind;

    fn refusal(why: &str) -> Acknowledgement {
        Acknowledgement { refusal: Some(why.to_owned()), ..Acknowledgement::default() }
    }

    #[test]
    fn a_plan_is_programmed_once_all_connected_data_planes_have_applied_it() {
        let (board, at) = (Board::default(), "192.0.2.1:9".parse().unwrap());
        let publish = |number, plan_number| {
            board.publish(Published::new(number, plan_number, PlanData::empty()));
        };
        let (good, pending) =
            (Acknowledgement::default(), |text: &str| Programming::Pending(text.to_owned()));
        publish(1, 1);
        assert_eq!(board.programming(), pending("no data plane is connected"));
        let (one, other) = (board.join("one", at).unwrap(), board.join("other", at).unwrap());
        board.acknowledge(one, 1, &good);
        assert_eq!(board.programming(), pending("1 of 2 data planes have applied it"));
        board.acknowledge(other, 1, &refusal("a mistake"));
        let why = "data plane other (192.0.2.1:9) serves the plan before: a mistake";
        assert_eq!(board.programming(), Programming::Refused(why.to_owned()));
        board.acknowledge(other, 1, &Acknowledgement { is_writing: true, ..good.clone() });
        assert_eq!(board.programming(), pending("1 of 2 data planes write it to their disks"));
        let notes = vec!["the disk is full".to_owned()];
        board.acknowledge(other, 1, &Acknowledgement { is_writing: true, notes, ..good.clone() });
        let why =
            "1 of 2 data planes write it to their disks; data plane other (192.0.2.1:9): the disk is full";
        assert_eq!(board.programming(), pending(why));
        board.acknowledge(other, 1, &good);
        assert_eq!(board.programming(), Programming::Done(String::new()));
        // Endpoints change nothing of that, and neither do data planes that leave.
        publish(2, 1);
        assert_eq!(board.programming(), Programming::Done(String::new()));
        [one, other].into_iter().for_each(|id| board.leave(id));
        assert_eq!(board.programming(), Programming::Done(String::new()));
        publish(3, 3);
        assert_eq!(board.programming(), pending("no data plane is connected"));
        board.set_fault("no place".to_owned());
        assert!(matches!(board.programming(), Programming::Refused(_)));
    }

    #[test]
    fn too_many_data_planes_are_refused() {
        let (board, at) = (Board::default(), "192.0.2.1:9".parse().unwrap());
        let joined: Vec<_> = (0..DATA_PLANES_MAX).filter_map(|_| board.join("x", at)).collect();
        assert_eq!((joined.len(), board.join("x", at)), (DATA_PLANES_MAX, None));
        board.leave(joined[0]);
        assert!(board.join("x", at).is_some());
    }

    #[test]
    fn only_conditions_that_are_true_become_pending() {
        let condition = |status: &str, reason: &str| serde_json::json!({"type": "Programmed", "status": status, "reason": reason, "message": ""});
        let status = serde_json::json!({
            "conditions": [condition("True", "Programmed"), {"type": "Accepted", "status": "True"}],
            "listeners": [{"conditions": [condition("False", "Invalid")]}, {"conditions": [condition("True", "Programmed")]}],
        });
        let kind = find_kind("gateway.networking.k8s.io/v1", "Gateway").unwrap();
        let update = Arc::new(StatusUpdate::new(kind, ObjectKey::new("a", "b"), status));
        let pending =
            with_programming(std::slice::from_ref(&update), &Programming::Pending("why".to_owned()))
                .remove(0);
        let at = |pointer: &str| pending.status.pointer(pointer).and_then(Value::as_str).unwrap();
        assert_eq!(at("/conditions/0/reason"), "Pending");
        assert_eq!(at("/conditions/0/message"), "why");
        assert_eq!(at("/conditions/1/status"), "True");
        assert_eq!(at("/listeners/0/conditions/0/reason"), "Invalid");
        assert_eq!(at("/listeners/1/conditions/0/status"), "False");
        assert_eq!(
            with_programming(std::slice::from_ref(&update), &Programming::Done(String::new())),
            [update]
        );
    }
}
