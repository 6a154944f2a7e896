//! Sites that a plan has in common with the one before.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::compiled::CompiledSite;
use crate::plan::{Limited, Rate, RateUse, SetValue, SetVariable, SharedSite};
use crate::{Place, WorkerSites, check_after, open_after};

/// A plan with the sites `a` and `b`, which keeps what is unchanged.
fn plan_of_two() -> Plan {
    let site = |name: &str| -> SharedSite {
        let mut limited = to_upstream("/limited");
        limited.rules.rates =
            vec![RateUse { rate: 0, burst: 0, delay: None, status: 429, fields: false, is_dry_run: false }];
        Site {
            name: name.to_owned(),
            hosts: vec![plan::Host::Exact(format!("{name}.example"))],
            routes: vec![respond(PathMatch::prefix("/"), name), limited],
            ..Site::default()
        }
        .into()
    };
    let mut plan = plan_of(Vec::new());
    plan.sites = vec![site("a"), site("b")];
    plan.rates = vec![rate()];
    plan.keeps_unchanged = true;
    plan
}

fn rate() -> Rate {
    let (key, window) = (Limited::Everyone, Duration::from_secs(1));
    Rate { name: "r".to_owned(), key, requests: 1, window, keys_max: 1000 }
}

/// The names of the sites that are not opened again after a change of the plan.
fn kept(change: impl Fn(&mut Plan)) -> Vec<String> {
    let former = plan_of_two();
    let opened = open(&former).unwrap();
    let mut later = former.clone();
    change(&mut later);
    let again = open_after(&later, Some(&opened)).unwrap();
    // However much is kept, it serves the later plan.
    let fresh = open(&Plan { keeps_unchanged: false, ..later }).unwrap();
    assert_eq!(without_ids(&again), without_ids(&fresh));
    let known = |site: &&Arc<CompiledSite>| opened.compiled.sites.iter().any(|it| Arc::ptr_eq(it, site));
    again.compiled.sites.iter().filter(known).map(|site| site.name.clone()).collect()
}

fn without_ids(sites: &Sites) -> Vec<String> {
    let client = |host: &str| {
        let client = TestClient {
            service: sites.service(Rc::<Fake>::default()),
            fake: Rc::default(),
            sites: sites.clone(),
        };
        let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        match client.reply(Some("192.0.2.1"), &head) {
            (Reply::Now, response) => format!("{:?}", answer(&response)),
            _ => panic!("expected Reply::Now"),
        }
    };
    ["a.example", "b.example", "c.example"].map(client).into()
}

#[test]
fn unchanged_sites_are_not_opened_again() {
    let other = proxy::Upstream::new("other", Vec::new());
    let text = |text: &str| Action::Respond {
        status: 200,
        content_type: "text/plain".to_owned(),
        body: template(text),
    };
    assert_eq!(kept(|_| {}), ["a", "b"]);
    assert_eq!(kept(|plan| plan.sites[0].routes[0].action = text("new")), ["b"]);
    assert_eq!(kept(|plan| plan.sites.reverse()), ["b", "a"]);
    assert_eq!(kept(|plan| drop(plan.sites.remove(0))), ["b"]);
    assert_eq!(kept(|plan| plan.upstreams.push(other.clone())), ["a", "b"]);
    assert_eq!(kept(|plan| plan.upstreams.insert(0, other.clone())), [""; 0], "indices mean others");
    assert_eq!(kept(|plan| plan.upstreams[0].servers.clear()), ["a", "b"]);
    assert_eq!(kept(|plan| plan.rates[0].requests = 2), [""; 0]);
    assert_eq!(kept(|plan| plan.rates.push(Rate { name: "s".to_owned(), ..rate() })), ["a", "b"]);
    assert_eq!(kept(|plan| plan.keeps_unchanged = false), [""; 0], "files may have changed");
    let set = |plan: &mut Plan| {
        plan.sets.push(SetVariable {
            name: "v".to_owned(),
            value: SetValue::Text(template("x")),
            when: Vec::new(),
            before: None,
        });
    };
    assert_eq!(kept(set), [""; 0]);
}

#[test]
fn a_worker_copies_only_new_sites_with_expressions() {
    let mut former = plan_of_two();
    let expression = PathMatch::Regex { pattern: "^/[0-9]+$".to_owned(), ignore_case: false };
    former.sites[0].routes.push(respond(expression, "number"));
    let opened = open(&former).unwrap();
    let first = opened.worker_sites(&WorkerSites::default());
    assert_eq!(first.copied(&WorkerSites::default()), [(true, false), (false, false)]);
    let mut later = former.clone();
    later.sites[1].routes.clear();
    let again = open_after(&later, Some(&opened)).unwrap();
    let next = again.worker_sites(&first);
    assert_eq!(next.copied(&first), [(true, true), (false, false)]);
    assert_eq!(again.worker_sites(&next).copied(&next), [(true, true), (false, true)]);
    later.sites[0].routes.remove(0);
    let fresh = open_after(&later, Some(&again)).unwrap().worker_sites(&next);
    assert_eq!(fresh.copied(&next), [(true, false), (false, true)]);
    // An expression of a condition, which was compiled with the plan.
    later.sites[1].routes.push(respond(PathMatch::prefix("/"), "b"));
    later.sites[1].routes[0].when = vec![condition("header['a'].matches('^[0-9]+$')")];
    let matching = open_after(&later, Some(&again)).unwrap().worker_sites(&WorkerSites::default());
    assert_eq!(matching.copied(&next).iter().map(|it| it.0).collect::<Vec<_>>(), [true, true]);
}

#[test]
fn copies_for_workers_are_made_in_advance() {
    let mut plan = plan_of_two();
    let expression = || PathMatch::Regex { pattern: "^/[0-9]+$".to_owned(), ignore_case: false };
    plan.sites[0].routes.push(respond(expression(), "number"));
    let opened = open(&plan).unwrap();
    let workers = [(); 3].map(|()| opened.worker_sites(&WorkerSites::default()));
    plan.sites[1].routes.push(respond(expression(), "number"));
    let again = open_after(&plan, Some(&opened)).unwrap();
    again.copy_for(2, &opened);
    // The third worker makes its copy itself. None has that of another.
    let next = workers.each_ref().map(|former| again.worker_sites(former));
    for (at, (worker, former)) in next.iter().zip(&workers).enumerate() {
        assert_eq!(worker.copied(former), [(true, true), (true, false)]);
        assert!(next[..at].iter().all(|other| worker.copied(other) == [(true, false); 2]));
    }
}

#[test]
fn mistakes_in_changed_sites_are_found() {
    let mut plan = plan_of_two();
    let right = check_after(&plan, None).unwrap();
    plan.sites[1].routes[1].methods = vec!["bad method".to_owned()];
    let fault = check_after(&plan, Some(&right)).unwrap_err();
    assert_eq!(fault.place, Place::Route(1, 1));
    plan.sites[1].routes.truncate(1);
    assert!(check_after(&plan, Some(&right)).is_ok());
    plan.upstreams.clear();
    let fault = check_after(&plan, Some(&right)).unwrap_err();
    assert_eq!(fault.place, Place::Route(0, 1), "it refers to an upstream that has gone");
}
