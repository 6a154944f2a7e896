//! Which routes depend on nothing but the request head, so that a cache may respond to identical heads in the same
//! way.

use super::super::compiled::Compiled;
use super::super::plan::{
    Access, FieldChange, FieldRule, Peers, Rewrite, RewriteFrom, Rules, Then, Trust, Verdict, When,
};
use super::*;

fn repeats(plan: &Plan) -> bool {
    Compiled::new(plan).unwrap().sites[0].repeats()
}

fn cached(rules: Rules) -> Plan {
    let rules = Rules { cache: Some(rules.cache.clone().unwrap_or_default()), ..rules };
    plan_of(vec![Route { rules, ..to_upstream("/") }])
}

fn field(text: &str) -> Vec<FieldRule> {
    let change = FieldChange::Set(template(text));
    vec![FieldRule { name: "X-A".to_owned(), change, when: When::Always }]
}

#[test]
fn a_route_repeats_if_nothing_but_the_head_matters() {
    assert!(repeats(&cached(Rules::default())));
    assert!(repeats(&cached(Rules { response_fields: field("constant"), ..Rules::default() })));
    assert!(!repeats(&plan_of(vec![to_upstream("/")])), "nothing is cached");
    let access = vec![Access { verdict: Verdict::Allow, peers: Peers::All }];
    for rules in [
        Rules { access, ..Rules::default() },
        Rules { request_fields: field("constant"), ..Rules::default() },
        Rules { response_fields: field("$remote_addr"), ..Rules::default() },
        Rules {
            cache: Some(plan::Cached { key: Some(template("$remote_addr")), ..Default::default() }),
            ..Rules::default()
        },
        Rules {
            cache: Some(plan::Cached { bypass: vec![template("$remote_addr")], ..Default::default() }),
            ..Rules::default()
        },
    ] {
        assert!(!repeats(&cached(rules.clone())), "{rules:?}");
    }
    let trust = Trust { proxies: vec![Peers::All], ..Trust::default() };
    let with = |change: fn(&mut plan::Site, Trust)| {
        let mut plan = cached(Rules::default());
        change(&mut plan.sites[0], trust.clone());
        repeats(&plan)
    };
    assert!(with(|_, _| ()));
    assert!(!with(|site, trust| site.trust = trust), "its word about the client counts");
    assert!(!with(|site, _| site.tls_rules = Some(1)), "the connection counts");
    let rewrite = Rewrite {
        from: RewriteFrom::Prefix("/a".to_owned()),
        to: template("/$remote_addr"),
        then: Then::Next,
        when: Vec::new(),
    };
    let mut plan = cached(Rules::default());
    plan.sites[0].rewrites = vec![rewrite];
    assert!(!repeats(&plan));
}
