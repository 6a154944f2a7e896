//! Functions and tasks before, during and after the run of the workers.

mod socket;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use flatout::{App, Shutdown};
use socket::{TIME_MAX, ask, get, serve};

fn log() -> (impl Fn(&str) + Clone + Send + Sync + 'static, Receiver<String>) {
    let (sender, receiver): (Sender<String>, _) = channel();
    (move |what: &str| drop(sender.send(what.to_owned())), receiver)
}

#[test]
fn starts_tasks_and_stops_run_around_the_workers() {
    let (note, heard) = log();
    let [first, second, handler, task, stop, inner] = std::array::from_fn(|_| note.clone());
    drop(note);
    let app = App::new()
        .on_start(async move || {
            tokio::time::sleep(Duration::from_millis(1)).await;
            first("start 1");
            Ok::<(), std::io::Error>(())
        })
        .on_start(async move || {
            second("start 2");
            Ok::<(), std::io::Error>(())
        })
        .background(async move |mut shutdown: Shutdown| {
            task("task");
            shutdown.begun().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            task("task ends");
        })
        .on_stop(async move || stop("stop"))
        .nest("/in", App::new().on_stop(async move || inner("inner stop")))
        .get("/", move || handler("request"));
    let server = serve(app);
    let next = || heard.recv_timeout(TIME_MAX).unwrap();
    assert_eq!([next(), next(), next()], ["start 1", "start 2", "task"]);
    ask(&server, &get("/"));
    assert_eq!(next(), "request");
    drop(server);
    assert_eq!(heard.iter().collect::<Vec<_>>(), ["task ends", "stop", "inner stop"]);
}

#[test]
fn a_start_that_fails_ends_the_start() {
    let (note, heard) = log();
    let fails = async || Err(std::io::Error::other("no database"));
    let app = |app: App| app.listen("127.0.0.1:0").workers(1);
    let failing = App::new().on_start(fails).on_start(async move || {
        note("never");
        Ok::<(), std::io::Error>(())
    });
    let Err(error) = app(failing).start() else { panic!("it has started") };
    assert!(error.to_string().contains("no database"), "{error}");
    assert_eq!(error.exit_code(), 1);
    assert!(heard.recv().is_err());
    let panics = async || -> Result<(), std::io::Error> { panic!("a defect") };
    assert!(app(App::new().on_start(panics)).start().is_err());
}

#[test]
fn tasks_are_dropped_at_the_deadline_and_their_panics_are_contained() {
    let (note, heard) = log();
    let server = App::new()
        .background(async |_| std::future::pending::<()>().await)
        .background(async |_| panic!("a defect"))
        .on_stop(async move || note("stop"))
        .plan(|plan| plan.drain_time_max = Duration::from_millis(50))
        .listen("127.0.0.1:0")
        .workers(1)
        .start()
        .unwrap();
    server.handle().drain();
    server.wait().unwrap();
    assert_eq!(heard.iter().collect::<Vec<_>>(), ["stop"]);
}
