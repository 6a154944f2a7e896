//! Invalid plans report the place of the error, and open nothing.

use std::time::Duration;

use super::super::plan::{
    ConcurrencyUse, FieldChange, FieldRule, Host, Limited, Rate, RateUse, Variable, When,
};
use super::super::{Error, Place};
use super::*;

fn field(name: &str, change: FieldChange) -> FieldRule {
    FieldRule { name: name.to_owned(), change, when: When::Always }
}

/// A change of a valid plan, the place of the error, and its message.
type Case<'a> = (&'a dyn Fn(&mut Plan), Place, &'a str);

#[test]
fn bad_plans_are_refused() {
    let fault = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan_of(vec![to_upstream("/")]);
        change(&mut plan);
        match open(&plan) {
            Err(Error::Fault(fault)) => fault,
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("it was opened"),
        }
    };
    let route = |plan: &mut Plan, change: &dyn Fn(&mut Route)| change(&mut plan.sites[0].routes[0]);
    let here = Place::Route(0, 0);
    let cases: [Case<'_>; 12] = [
        (&|plan| plan.upstreams.truncate(0), here, "no upstream 0: there are 0"),
        (&|plan| route(plan, &|route| route.action = Action::Files(0)), here, "no folder 0"),
        (&|plan| route(plan, &|route| route.try_files = Some(1)), here, "no folder 1"),
        (
            &|plan| {
                route(plan, &|route| {
                    route.rules.concurrency = vec![ConcurrencyUse { limit: 0, is_dry_run: false }]
                })
            },
            here,
            "no concurrency limit 0",
        ),
        (
            &|plan| route(plan, &|route| route.methods = vec!["A B".to_owned()]),
            here,
            "`A B` is not a valid method",
        ),
        (&|plan| route(plan, &|route| route.path = PathMatch::prefix("a")), here, "begins with `/`"),
        (
            &|plan| {
                route(plan, &|route| {
                    route.rules.rates = vec![RateUse {
                        rate: 0,
                        burst: 0,
                        delay: None,
                        status: 429,
                        fields: true,
                        is_dry_run: false,
                    }]
                })
            },
            here,
            "no rate 0",
        ),
        (
            &|plan| {
                let to = Template::default();
                route(plan, &|route| route.action = Action::Redirect { status: 200, to: to.clone() });
            },
            here,
            "the status 200",
        ),
        (
            &|plan| {
                let key = Limited::Everyone;
                let window = Duration::ZERO;
                plan.rates.push(Rate { name: "a".to_owned(), key, requests: 1, window, keys_max: 1 });
            },
            Place::Rate(0),
            "at least 1",
        ),
        (
            &|plan| {
                let key = Limited::Everyone;
                let window = Duration::from_secs(1);
                plan.rates.push(Rate { name: "a\"b".to_owned(), key, requests: 1, window, keys_max: 1 });
            },
            Place::Rate(0),
            "visible ASCII",
        ),
        (
            &|plan| {
                let template = Template(vec![plan::Piece::Variable(Variable::Map(3))]);
                route(plan, &|route| {
                    route.rules.response_fields = vec![field("A", FieldChange::Set(template.clone()))];
                });
            },
            here,
            "no map 3",
        ),
        (
            &|plan| plan.sites[0].hosts = vec![Host::Exact("a b".to_owned())],
            Place::Site(0),
            "need a host name",
        ),
    ];
    for (change, place, reason) in cases {
        let fault = fault(change);
        assert_eq!(fault.place, place, "{fault}");
        assert!(fault.reason.contains(reason), "{fault}");
    }
}
