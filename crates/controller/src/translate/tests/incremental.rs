//! Translations after changes: the same as those of all objects, whatever has changed in whatever order.

use super::*;

/// Random numbers (SplitMix64) from a seed that a failure shows.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % u64::try_from(limit).unwrap()).unwrap()
    }

    fn of<'t>(&mut self, list: &[&'t str]) -> &'t str {
        list[self.below(list.len())]
    }
}

const BACKENDS: &[&str] = &[
    "{name: a, port: 8080}",
    "{name: a, port: 9090}",
    "{name: b, port: 8080, weight: 3}",
    "{name: far, namespace: elsewhere, port: 8080}",
    "{name: missing, port: 8080}",
    "{name: c, port: 80}",
];

const HOSTS: &[&str] = &["", "hostnames: [x.test]", "hostnames: ['*.test', y.test]", "hostnames: [bad host]"];

/// A route of any kind, in one of many versions. Some are refused, by the translation or by the site layer.
fn some_route(random: &mut Random) -> String {
    let name = format!("r{}", random.below(6));
    let (hosts, one, other) = (random.of(HOSTS), random.of(BACKENDS), random.of(BACKENDS));
    let parent = random.of(&[
        "gw",
        "gw",
        "gw, sectionName: http",
        "gw, sectionName: none",
        "other",
        "tls",
        "other, kind: ListenerSet",
    ]);
    let age = random.below(3);
    let (kind, rules) = match random.below(8) {
        0 => ("GRPCRoute", format!("[{{matches: [{{method: {{service: s}}}}], backendRefs: [{one}]}}]")),
        1 => ("TLSRoute", format!("[{{backendRefs: [{one}, {other}]}}]")),
        2 => (
            "HTTPRoute",
            "[{filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}]}]".to_owned(),
        ),
        3 => {
            let header = random.of(&["X-A", "bad name"]);
            let filter = format!(
                "{{type: ResponseHeaderModifier, responseHeaderModifier: {{set: [{{name: '{header}', value: v}}]}}}}"
            );
            ("HTTPRoute", format!("[{{filters: [{filter}], backendRefs: [{one}]}}]"))
        }
        4 => {
            ("HTTPRoute", format!("[{{timeouts: {{request: {}s}}, backendRefs: [{one}]}}]", random.below(3)))
        }
        _ => {
            let path = random.of(&["/", "/a", "/a/b", "bad"]);
            let matched = format!("{{path: {{type: PathPrefix, value: {path}}}}}");
            (
                "HTTPRoute",
                format!(
                    "[{{matches: [{matched}], backendRefs: [{one}, {other}]}}, {{backendRefs: [{other}]}}]"
                ),
            )
        }
    };
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\n\
         metadata: {{name: {name}, generation: {}, creationTimestamp: '2026-01-0{}T00:00:00Z'}}\n\
         spec:\n  parentRefs: [{{name: {parent}}}]\n  {hosts}\n  rules: {rules}",
        random.below(9),
        age + 1,
    )
}

/// Endpoints of a service.
fn some_slice(random: &mut Random) -> String {
    let service = random.of(&["a", "b", "c"]);
    let addresses: Vec<String> =
        (0..random.below(4)).map(|_| format!("{{addresses: [10.2.0.{}]}}", random.below(9))).collect();
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {service}-{}, labels: {{kubernetes.io/service-name: {service}}}}}\naddressType: IPv4\n\
         ports: [{{name: {}, port: 3000}}]\nendpoints: [{}]",
        random.below(2),
        random.of(&["web", "''"]),
        addresses.join(", "),
    )
}

/// A ConfigMap with a CA certificate and a Secret with a certificate, the same in all changes.
fn fixed_certificates() -> &'static [String; 2] {
    static MADE: std::sync::OnceLock<[String; 2]> = std::sync::OnceLock::new();
    MADE.get_or_init(|| {
        let made = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
        let authority = super::policies::authority();
        [
            super::policies::config_map(&authority),
            super::status::secret(&made.cert.pem(), &made.signing_key.serialize_pem()),
        ]
    })
}

/// Objects that others depend on.
fn some_other(random: &mut Random) -> String {
    let port = random.of(&["80", "81"]);
    let [ca, certificate] = fixed_certificates();
    let gateway = |name: &str, listener: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: {name}}}\n\
             spec: {{gatewayClassName: flatout, listeners: [{listener}]}}"
        )
    };
    match random.below(12) {
        5 => format!("{ca}\n{}", super::policies::policy("p", 1, "", super::policies::CA)),
        6 => super::policies::policy("p", 1, random.of(&["", ", sectionName: web"]), random.of(&["", super::policies::CA])),
        7 => format!(
            "{certificate}\n---\n{}",
            gateway("other", "{name: s, port: 443, protocol: HTTPS, hostname: '*.test', tls: {certificateRefs: [{name: cert}]}}")
        ),
        10 => super::route_policies::limit("limit", random.of(&["r1", "r2"]), random.of(&["requests: {count: 3}", "bodyBytes: 9", "x: 1"])),
        11 => super::route_policies::cache("cache", random.of(&["r1", "r2"]), random.of(&["validFor: 3s", "validFor: 3x"])),
        8 => super::status::secret(random.of(&["", "broken"]), "broken"),
        9 => format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: ListenerSet\nmetadata: {{name: other}}\n\
             spec: {{parentRef: {{name: gw}}, listeners: [{{name: http, port: {port}, protocol: HTTP, hostname: s.test}}]}}\n---\n\
             apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: gw, creationTimestamp: '2026-01-01T00:00:00Z'}}\n\
             spec: {{gatewayClassName: flatout, tls: {{backend: {{clientCertificateRef: {{name: cert}}}}}}, allowedListeners: \
             {{namespaces: {{from: {}}}}}, listeners: [{{name: http, port: 80, protocol: HTTP}}]}}",
            random.of(&["Same", "None"])
        ),
        0 => format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: c}}\nspec: {{ports: [{{port: {port}, appProtocol: {}}}]}}",
            random.of(&["http", "kubernetes.io/h2c"])
        ),
        1 => gateway("other", &format!("{{name: http, port: {port}, protocol: HTTP, hostname: '*.test'}}")),
        2 => gateway("tls", "{name: tls, port: 443, protocol: TLS, tls: {mode: Passthrough}}"),
        3 => "apiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\nmetadata: {name: g, namespace: elsewhere}\n\
              spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: default}], to: [{group: '', kind: Service}]}"
            .to_owned(),
        _ => format!(
            "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {{name: flatout}}\nspec: {{controller: flatout.dev/controller}}\n---\n\
             apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: i, annotations: {{nginx.ingress.kubernetes.io/limit-rps: '{port}'}}}}\n\
             spec: {{ingressClassName: flatout, rules: [{{host: x.test, http: {{paths: [{{path: /a, pathType: Prefix, \
             backend: {{service: {{name: b, port: {{number: 8080}}}}}}}}]}}}}]}}"
        ),
    }
}

fn change(objects: &mut Objects, random: &mut Random) {
    let text = match random.below(20) {
        0 => some_other(random),
        1..8 => some_slice(random),
        _ => some_route(random),
    };
    for value in yaml::objects(&text).unwrap() {
        match objects.insert(value).unwrap() {
            Insertion::Changed(kind, key) | Insertion::Same(kind, key) => {
                if random.below(4) == 0 {
                    objects.remove(kind, &key);
                }
            }
            Insertion::Ignored(what) => panic!("{what} is ignored"),
        }
    }
}

fn shown(translation: &Translation) -> String {
    format!("{translation:#?}")
}

#[test]
fn any_sequence_of_changes_leads_to_the_translation_of_all_objects() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let mut objects = objects(BASE);
        let mut translator = Translator::default();
        for step in 0..30 {
            (0..=random.below(3)).for_each(|_| change(&mut objects, &mut random));
            let changed = std::mem::replace(&mut objects.changed, ObjectChanges::none());
            // Endpoints alone are followed without a translation.
            if random.below(4) == 0 {
                translator.note(changed);
                continue;
            }
            let (found, expected) =
                (translator.translate(&objects, changed, &settings()), translate(&objects, &settings()));
            assert_eq!(shown(&found), shown(&expected), "seed {seed}, step {step}");
            flatout_site::check(&found.sites).unwrap();
        }
    }
}

#[test]
fn other_settings_are_followed() {
    let mut objects =
        objects(&format!("{BASE}\n{}", route("r", "rules: [{backendRefs: [{name: a, port: 8080}]}]")));
    let mut translator = Translator::default();
    let mut settings = settings();
    let changed = std::mem::replace(&mut objects.changed, ObjectChanges::none());
    assert!(!translator.translate(&objects, changed, &settings).sites.sites.is_empty());
    settings.refused.insert("10.0.0.1:80".parse().unwrap());
    let found = translator.translate(&objects, ObjectChanges::none(), &settings);
    assert_eq!(shown(&found), shown(&translate(&objects, &settings)));
    assert!(found.sites.sites.is_empty());
}

#[test]
fn a_change_of_a_route_leaves_the_sites_of_all_others_shared() {
    let spec = |host: &str, path: &str| {
        route(
            host,
            &format!(
                "hostnames: [{host}.test]\nrules: [{{matches: [{{path: {{value: {path}}}}}], backendRefs: [{{name: a, port: 8080}}]}}]"
            ),
        )
    };
    let mut objects =
        objects(&format!("{BASE}\n{}{}{}", spec("first", "/1"), spec("second", "/1"), spec("third", "/1")));
    let mut translator = Translator::default();
    let mut next = |objects: &mut Objects| {
        let changed = std::mem::replace(&mut objects.changed, ObjectChanges::none());
        translator.translate(objects, changed, &settings())
    };
    let former = next(&mut objects);
    for value in yaml::objects(&spec("second", "/2")).unwrap() {
        objects.insert(value).unwrap();
    }
    let later = next(&mut objects);
    let pairs = former.sites.sites.iter().zip(&later.sites.sites);
    let others: Vec<&str> =
        pairs.filter(|(one, other)| !one.is(other)).map(|(_, it)| it.name.as_str()).collect();
    assert_eq!(others, ["second.test:80"]);
    let pairs = former.statuses.iter().zip(&later.statuses);
    let others: Vec<&str> = pairs
        .filter(|(one, other)| !Arc::ptr_eq(one, other) && one.kind.name == "HTTPRoute")
        .map(|(_, it)| it.key.name.as_str())
        .collect();
    assert_eq!(others, ["second"]);
    // What data planes read shares it too.
    let (mut read, data) = (
        crate::data::ReadSites::default(),
        |it: &Translation, known: Option<(&Translation, &crate::PlanData)>| {
            crate::PlanData::of_next(it, &settings().addresses, known).unwrap()
        },
    );
    let plane = crate::DataPlaneSettings {
        addresses: settings().addresses,
        health: None,
        folder: settings().folder,
        refused: BTreeSet::new(),
    };
    let first = data(&former, None);
    let second = data(&later, Some((&former, &first)));
    let one = first.translation_after(&mut read, &plane, "ok\n").unwrap();
    let other = second.translation_after(&mut read, &plane, "ok\n").unwrap();
    assert_eq!(shown_sites(&other), shown_sites(&later));
    let pairs = one.sites.sites.iter().zip(&other.sites.sites);
    assert_eq!(pairs.filter(|(one, other)| !one.is(other)).count(), 1);
}

fn shown_sites(translation: &Translation) -> String {
    format!("{:#?}", translation.sites)
}

#[test]
fn other_objects_than_routes_leave_the_records_of_routes_that_they_do_not_concern() {
    let [_, certificate] = fixed_certificates();
    let made = rcgen::generate_simple_self_signed(["b.test".to_owned()]).unwrap();
    let renewed = super::status::secret(&made.cert.pem(), &made.signing_key.serialize_pem());
    let gateway = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: gw}\nspec: {gatewayClassName: flatout, \
                   listeners: [{name: s, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}]}";
    let to = |name: &str, service: &str| {
        route(
            name,
            &format!("hostnames: [{name}.test]\nrules: [{{backendRefs: [{{name: {service}, port: 8080}}]}}]"),
        )
    };
    let mut objects =
        objects(&format!("{BASE}\n---\n{gateway}\n{certificate}{}{}", to("one", "a"), to("two", "b")));
    let mut translator = Translator::default();
    let mut next = |objects: &mut Objects, text: &str| {
        for value in yaml::objects(text).unwrap() {
            objects.insert(value).unwrap();
        }
        let changed = std::mem::replace(&mut objects.changed, ObjectChanges::none());
        let found = translator.translate(objects, changed, &settings());
        assert_eq!(shown(&found), shown(&translate(objects, &settings())), "{text}");
        found
    };
    let mut former = next(&mut objects, "");
    let ingress = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: i}\nspec: {ingressClassName: other}";
    let unused = renewed.replace("{name: cert}", "{name: unused}");
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: b}\nspec: {ports: [{port: 8080, appProtocol: kubernetes.io/h2c}]}";
    let other_gateway = gateway.replace("port: 443", "port: 8443");
    for (text, made_again) in [
        (renewed.as_str(), &[][..]),
        (unused.as_str(), &[]),
        (ingress, &[]),
        (service, &["two"]),
        (other_gateway.as_str(), &["one", "two"]),
    ] {
        let later = next(&mut objects, text);
        let of = |translation: &Translation| -> Vec<Arc<StatusUpdate>> {
            translation.statuses.iter().filter(|it| it.kind.name == "HTTPRoute").cloned().collect()
        };
        let pairs = of(&former).into_iter().zip(of(&later));
        let fresh: Vec<String> = pairs
            .filter(|(one, other)| !Arc::ptr_eq(one, other))
            .map(|(_, it)| it.key.name.clone())
            .collect();
        assert_eq!(fresh, made_again, "{text}");
        former = later;
    }
}
