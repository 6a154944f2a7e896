//! The policy of the response cache. The first line is a number of seconds that have passed; then follow the lines of
//! the request up to an empty line, then the status and the lines of the response.

use flatout_wire::Status;
use flatout_wire::cache::{
    RequestDirectives, Exchange, Rules, SECONDS_MAX, Verdict, directives, is_any, store, vary_names, write_selected,
};

const CAME_MS: u64 = 784_111_777_000;

pub fn run(input: &[u8]) {
    let mut lines = input.split(|&byte| byte == b'\n');
    let passed: u64 = lines.next().and_then(|line| std::str::from_utf8(line).ok()?.parse().ok()).unwrap_or(0);
    let request: Vec<_> = lines.by_ref().take_while(|line| !line.is_empty()).filter_map(field).collect();
    let code = lines.next().and_then(|line| std::str::from_utf8(line).ok()?.parse().ok()).unwrap_or(200);
    let Some(status) = Status::from_code(code) else { return };
    let response: Vec<_> = lines.filter_map(field).collect();

    let wanted = RequestDirectives::of(request.iter().copied());
    let exchange =
        Exchange { request_ms: CAME_MS, response_ms: CAME_MS, is_authorized: false, has_authorization_key: false, asks_no_store: wanted.no_store };
    let named = |name: &'static str| {
        response.iter().filter(move |(this, _)| this.eq_ignore_ascii_case(name.as_bytes())).map(|(_, value)| *value)
    };
    selections_are_stable(named("vary"), &request);
    let Ok(kept) = store(status, response.iter().copied(), &exchange, &Rules::default()) else { return };
    assert!(!wanted.no_store && code >= 200 && !is_any(named("vary")));
    let policy = kept.policy;
    assert!(policy.lifetime <= SECONDS_MAX && policy.initial_age <= SECONDS_MAX);
    let is_targeted = ["cdn-cache-control", "flatout-cache-control"].iter().any(|name| named(name).next().is_some());
    let says = |name: &str| named("cache-control").flat_map(directives).any(|directive| directive.is(name));
    if !is_targeted {
        assert!(!says("no-store") || says("must-understand"));
    }
    let now_ms = CAME_MS.saturating_add(passed.saturating_mul(1000));
    let verdict = policy.judge(&wanted, now_ms, false);
    if verdict == Verdict::Fresh {
        assert!(policy.fresh_for(now_ms) > 0 && !wanted.no_cache && !policy.is_validated_always);
        // Less waiting does not make a fresh response stale.
        assert_eq!(policy.judge(&wanted, CAME_MS, false), Verdict::Fresh);
    }
    if policy.is_never_stale {
        assert!(!matches!(verdict, Verdict::Stale | Verdict::Refresh));
        assert!(!policy.stands_in(&wanted, now_ms, Some(u32::MAX)));
    }
}

fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = line.iter().position(|&byte| byte == b':')?;
    let (name, value) = line.split_at(at);
    Some((name, value[1..].trim_ascii()))
}

/// The same request selects the same, and names are read in any order.
fn selections_are_stable<'a>(vary: impl Iterator<Item = &'a [u8]> + Clone, request: &[(&[u8], &[u8])]) {
    let names = vary_names(vary.clone());
    let reversed: Vec<&[u8]> = vary.flat_map(|line| line.rsplit(|&byte| byte == b',')).collect();
    assert_eq!(vary_names(reversed.into_iter()), names);
    let select = || {
        let mut out = Vec::new();
        let of = |name: &[u8]| {
            let found: Vec<&[u8]> =
                request.iter().filter(|(this, _)| this.eq_ignore_ascii_case(name)).map(|(_, value)| *value).collect();
            found.into_iter()
        };
        write_selected(&names, of, &mut out);
        out
    };
    assert_eq!(select(), select());
}
