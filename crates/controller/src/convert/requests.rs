//! Requests for the hosts and paths of Ingresses: two servers that get them respond alike, or differ where a migration has changed something.

use std::collections::BTreeSet;

use super::annotation::{canary_header, is_on, names};
use crate::kinds::ingress::{Ingress, IngressPath, IngressRule};
use crate::objects::Objects;

/// The label in place of the star of `*.example.org`.
const ANY_LABEL: &str = "flatout-check";

/// Added to prefixes, and used as a path that probably no rule has.
const BELOW: &str = "flatout-check";

/// The origin of requests to Ingresses with CORS that allow any.
const ORIGIN: &str = "https://flatout-check.test";

/// A GET request.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct IngressRequest {
    /// The host name; none: any.
    pub host: Option<String>,
    /// The path.
    pub path: String,
    /// Further fields.
    pub fields: Vec<(String, String)>,
}

/// Requests for all hosts and paths of Ingresses, each once: the path itself, one below it, one that no rule has, expressions in upper case too,
/// and those with the fields that canaries and CORS are about. Which of two versions of an application responds by chance (`canary-weight`) shows only if their
/// responses differ.
pub fn ingress_requests(objects: &Objects) -> Vec<IngressRequest> {
    let mut found = BTreeSet::new();
    for ingress in objects.ingresses.values() {
        let aliases = aliases(ingress);
        for host in hosts(ingress, &aliases) {
            // An alias has the rules of all hosts.
            let is_alias = aliases.contains(&host);
            let has_host = |rule: &&IngressRule| rule.host.is_empty() || named(&rule.host) == host;
            let rules = ingress.spec.rules.iter().filter(|rule| is_alias || has_host(rule));
            let paths =
                rules.flat_map(|rule| rule.http.iter().flat_map(|http| &http.paths)).flat_map(targets);
            let mut of_ingress: BTreeSet<String> = paths.chain([format!("/{BELOW}")]).collect();
            if is_on(ingress, "use-regex") || !names(ingress, "rewrite-target").is_empty() {
                // Expressions ignore case.
                let upper: Vec<String> = of_ingress.iter().map(|path| path.to_ascii_uppercase()).collect();
                of_ingress.extend(upper);
            }
            for path in of_ingress {
                let plain = IngressRequest { host: host.clone(), path, fields: Vec::new() };
                found.extend(
                    fields(ingress)
                        .into_iter()
                        .map(|it| IngressRequest { fields: vec![it], ..plain.clone() }),
                );
                found.insert(plain);
            }
        }
    }
    found.into_iter().collect()
}

/// The hosts of an Ingress, its aliases included.
fn hosts(ingress: &Ingress, aliases: &[Option<String>]) -> BTreeSet<Option<String>> {
    let mut all: BTreeSet<Option<String>> = ingress.spec.rules.iter().map(|rule| named(&rule.host)).collect();
    all.extend(aliases.iter().cloned());
    if ingress.spec.default_backend.is_some() {
        all.insert(None);
    }
    all
}

/// A host that a rule for this one has.
fn named(host: &str) -> Option<String> {
    let host = host.strip_prefix("*.").map_or_else(|| host.to_owned(), |rest| format!("{ANY_LABEL}.{rest}"));
    Some(host).filter(|host| !host.is_empty())
}

/// Further hosts, which have no rules of their own.
fn aliases(ingress: &Ingress) -> Vec<Option<String>> {
    names(ingress, "server-alias").iter().map(|alias| named(alias)).collect()
}

/// The paths of requests for a path. Of an expression, only what it begins with is known.
fn targets(path: &IngressPath) -> Vec<String> {
    let text = path.path.trim_start_matches('^');
    let begin = text.split(|letter| "\\^$*+?()[]{}|".contains(letter)).next().unwrap_or_default();
    let is_fit = |it: &str| {
        it.starts_with('/') && it.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#".contains(&byte))
    };
    let begin = if is_fit(begin) { begin } else { "/" };
    let below = format!("{}/{BELOW}?a=1", begin.trim_end_matches('/'));
    match path.path_type.as_str() {
        "Exact" => vec![begin.to_owned(), below],
        _ => vec![begin.to_owned(), format!("{begin}{BELOW}"), below],
    }
}

/// The fields that annotations are about.
fn fields(ingress: &Ingress) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = canary_header(ingress).into_iter().collect();
    if is_on(ingress, "enable-cors") {
        let origins = names(ingress, "cors-allow-origin");
        let origin = origins.iter().find(|it| !it.contains('*')).map_or(ORIGIN, String::as_str);
        all.push(("Origin".to_owned(), origin.to_owned()));
    }
    // Other characters would break the head of the request.
    all.retain(|(name, value)| {
        let is_token = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        is_token && !name.is_empty() && value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(annotations: &str, spec: &str) -> Vec<String> {
        let text = format!(
            "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: i, annotations: {{{annotations}}}}}\nspec: {{{spec}}}"
        );
        let mut objects = Objects::default();
        for value in crate::yaml::objects(&text).unwrap() {
            objects.insert(value).unwrap();
        }
        let shown = |it: &IngressRequest| {
            let fields: String = it.fields.iter().map(|(name, value)| format!(" {name}={value}")).collect();
            format!("{}{}{fields}", it.host.as_deref().unwrap_or("-"), it.path)
        };
        ingress_requests(&objects).iter().map(shown).collect()
    }

    fn rule(host: &str, kind: &str, path: &str) -> String {
        format!(
            "rules: [{{host: '{host}', http: {{paths: [{{path: '{path}', pathType: {kind}, backend: {{service: {{name: a, port: {{number: 1}}}}}}}}]}}}}]"
        )
    }

    #[test]
    fn each_path_of_each_host_is_requested() {
        let below =
            ["a.test/api", "a.test/api/flatout-check?a=1", "a.test/apiflatout-check", "a.test/flatout-check"];
        assert_eq!(requests("", &rule("a.test", "Prefix", "/api")), below);
        let exact = ["a.test/api", "a.test/api/flatout-check?a=1", "a.test/flatout-check"];
        assert_eq!(requests("", &rule("a.test", "Exact", "/api")), exact);
        assert_eq!(requests("", &rule("a.test", "ImplementationSpecific", "^/api(/|$)(.*)")), below);
        let any = requests("", "defaultBackend: {service: {name: a, port: {number: 1}}}");
        assert_eq!(any, ["-/flatout-check"]);
        assert_eq!(requests("", &rule("*.a.test", "Exact", "/"))[0], "flatout-check.a.test/");
        assert_eq!(requests("", "{}".trim_matches(['{', '}'])), [""; 0]);
    }

    #[test]
    fn expressions_are_requested_in_both_cases() {
        let regex = "nginx.ingress.kubernetes.io/use-regex: 'true'";
        let found = requests(regex, &rule("a.test", "ImplementationSpecific", "/api/v[0-9]"));
        for path in ["/api/v", "/API/V", "/api/vflatout-check", "/API/VFLATOUT-CHECK"] {
            assert!(found.contains(&format!("a.test{path}")), "{path}: {found:?}");
        }
    }

    #[test]
    fn annotations_add_hosts_and_fields() {
        let prefix = "nginx.ingress.kubernetes.io";
        let alias =
            requests(&format!("{prefix}/server-alias: 'b.test, c.test'"), &rule("a.test", "Exact", "/x"));
        assert!(
            alias.contains(&"b.test/x".to_owned()) && alias.contains(&"c.test/x".to_owned()),
            "{alias:?}"
        );
        let canary = format!(
            "{prefix}/canary: 'true', {prefix}/canary-by-header: X-New, {prefix}/canary-by-header-value: yes-please"
        );
        assert!(
            requests(&canary, &rule("a.test", "Exact", "/x"))
                .contains(&"a.test/x X-New=yes-please".to_owned())
        );
        let cors =
            |origin: &str| format!("{prefix}/enable-cors: 'true', {prefix}/cors-allow-origin: '{origin}'");
        let found = requests(&cors("https://*.o.test, https://o.test"), &rule("a.test", "Exact", "/x"));
        assert!(found.contains(&"a.test/x Origin=https://o.test".to_owned()), "{found:?}");
        assert!(
            requests(&cors("*"), &rule("a.test", "Exact", "/x"))
                .contains(&format!("a.test/x Origin={ORIGIN}"))
        );
    }

    #[test]
    fn texts_that_are_no_paths_or_fields_are_not_sent() {
        let odd = requests("", &rule("a.test", "Prefix", "/a b"));
        assert!(odd.iter().all(|it| it.starts_with("a.test/") && !it.contains(' ')), "{odd:?}");
        assert!(requests("", &rule("a.test", "Prefix", "no")).contains(&"a.test/".to_owned()));
        let prefix = "nginx.ingress.kubernetes.io";
        let canary = format!("{prefix}/canary: 'true', {prefix}/canary-by-header: 'bad name'");
        assert!(requests(&canary, &rule("a.test", "Exact", "/x")).iter().all(|it| !it.contains("bad")));
    }
}
