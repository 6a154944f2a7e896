//! The figures of the server in the format of nginx's `stub_status`, for tools that parse it.

use flatout_engine::{Figures, Response, State, WorkerFigures};
use flatout_wire::{Method, Status};

use super::steps::{Next, Outcome, Refusal, RequestContext, Step};
use super::suspend::Event;
use super::worker::{SiteWorker, write_status};

/// Responds, once all workers have sent their figures.
pub(super) fn respond(worker: &SiteWorker, context: &mut RequestContext<'_>) -> Next {
    if let Some(made) = context.progress.made.take() {
        *context.response = *made;
        return Next::Continue(());
    }
    if !matches!(context.request.head.method, Method::Get | Method::Head) {
        write_status(Status::METHOD_NOT_ALLOWED, context.response);
        context.response.header("Allow", "GET, HEAD");
        return Next::Continue(());
    }
    // Only tests of sites have none.
    let Some(lane) = &worker.lane else {
        return Next::Break(Outcome::Refuse(Refusal::Status(Status::INTERNAL_SERVER_ERROR)));
    };
    let figures = lane.figures_of_workers();
    let response = async move {
        let mut response = Response::new();
        response.header("Content-Type", "text/plain");
        response.buffer().extend_from_slice(text(&figures.await).as_bytes());
        response
    };
    Next::Break(Outcome::Suspend(Event::Response(Box::pin(response)), Step::Handler))
}

/// Reading: connections that are sending a request; waiting: idle ones; writing: all others, as nginx counts them.
fn text(workers: &[WorkerFigures]) -> String {
    let sum = |of: fn(&Figures) -> u64| workers.iter().map(|worker| of(&worker.figures)).sum::<u64>();
    let in_state =
        |state: State| workers.iter().map(|worker| worker.states[state as usize] as u64).sum::<u64>();
    let (active, accepted) = (sum(|it| it.connections as u64), sum(|it| it.accepted));
    let requests = sum(|it| it.requests);
    let (reading, waiting) = (in_state(State::Reading), in_state(State::Idle));
    let writing = active.saturating_sub(reading + waiting);
    format!(
        "Active connections: {active} \nserver accepts handled requests\n {accepted} {accepted} {requests} \n\
         Reading: {reading} Writing: {writing} Waiting: {waiting} \n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_all_workers_are_added() {
        let worker = |requests, connections, states| WorkerFigures {
            figures: Figures { requests, connections, accepted: 20, proxy_refused: 0 },
            states,
            ..WorkerFigures::default()
        };
        // A connection that has left HTTP is in no state.
        let text = text(&[worker(10, 8, [1, 2, 1, 1, 1]), worker(5, 1, [1, 0, 0, 0, 0])]);
        let expected = "Active connections: 9 \nserver accepts handled requests\n 40 40 15 \n\
                        Reading: 2 Writing: 5 Waiting: 2 \n";
        assert_eq!(text, expected);
    }
}
