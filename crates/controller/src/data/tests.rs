//! Plans that travel.

use serde_json::json;

use super::*;

/// Checks that a data plane with the controller's addresses and folder reads the same translation.
pub(crate) fn check_round_trip(translation: &Translation, addresses: &[IpAddr], folder: &Path) {
    let data = PlanData::of(translation, addresses).unwrap();
    let text = serde_json::to_string(&data).unwrap();
    let read = PlanData::read(serde_json::from_str(&text).unwrap()).unwrap();
    assert_eq!(read, data);
    let settings = DataPlaneSettings {
        addresses: addresses.to_vec(),
        health: None,
        folder: folder.to_owned(),
        refused: BTreeSet::new(),
    };
    let again = read.translation(&settings, "ok\n").unwrap();
    let shown = |it: &Translation| format!("{:#?}", (&it.sites, &it.site_listen, &it.site_secure, &it.files));
    assert_eq!(shown(&again), shown(translation));
}

fn settings(addresses: &[&str]) -> DataPlaneSettings {
    DataPlaneSettings {
        addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
        health: Some("127.0.0.1:8081".parse().unwrap()),
        folder: PathBuf::from("/state"),
        refused: BTreeSet::new(),
    }
}

fn site(address: usize, port: u16, routes: Value) -> Value {
    json!({"name": "h", "host": {"exact": "h"}, "listen": {"address": address, "port": port, "is_plain": true},
           "routes": routes})
}

fn plan(sites: Value) -> Value {
    json!({"format": 3, "sites": sites, "upstreams": []})
}

#[test]
fn each_data_plane_has_addresses_of_its_own() {
    let plan = PlanData::read(plan(json!([site(0, 80, json!([])), site(1, 81, json!([]))]))).unwrap();
    let mut own = settings(&["192.0.2.1", "192.0.2.2"]);
    let listens = |translation: &Translation| -> Vec<String> {
        translation
            .site_listen
            .iter()
            .map(|it| it[0].listen.address.to_string().replace("http://", ""))
            .collect()
    };
    let translation = plan.translation(&own, "ok\n").unwrap();
    assert_eq!(listens(&translation), ["192.0.2.1:80", "192.0.2.2:81", "127.0.0.1:8081"]);
    own.refused.insert("192.0.2.1:80".parse().unwrap());
    assert_eq!(listens(&plan.translation(&own, "ok\n").unwrap()), ["192.0.2.2:81", "127.0.0.1:8081"]);
    let why = plan.translation(&settings(&["192.0.2.1"]), "ok\n").unwrap_err();
    assert_eq!(why, "the plan needs 2 addresses, this data plane has 1 (--address)");
}

#[test]
fn malformed_plans_are_refused() {
    let route = |action: Value| json!([{"name": "r", "path": {"exact": "/"}, "action": action}]);
    let to = |name: &str| json!({"proxy": {"upstream": name}});
    let respond =
        |body: Value| json!({"respond": {"status": 200, "content_type": "text/plain", "body": body}});
    for (value, reason) in [
        (json!({"sites": []}), "without the number of its format"),
        (json!({"format": 1, "later": []}), "has the format 1; this version knows 3"),
        (json!({"format": 3, "sites": []}), "missing field `upstreams`"),
        (json!({"format": 3, "sites": [], "upstreams": [], "later": 1}), "unknown field `later`"),
        (
            json!({"format": 3, "sites": [], "upstreams": [], "files": {"../x.crt": ""}}),
            "a file of the name `../x.crt`",
        ),
        (
            json!({"format": 3, "sites": [], "upstreams": [], "files": {"plan.json": ""}}),
            "a file of the name `plan.json`",
        ),
    ] {
        let why = PlanData::read(value).unwrap_err();
        assert!(why.contains(reason), "{why}");
    }
    for (body, reason) in [
        (json!([{"variable": "nothing"}]), "unknown variable `nothing`"),
        (json!([{"variable": "host}x${host"}]), "unknown variable"),
    ] {
        let read = PlanData::read(plan(json!([site(0, 80, route(respond(body)))]))).unwrap();
        let why = read.translation(&settings(&["192.0.2.1"]), "ok\n").unwrap_err();
        assert!(why.contains(reason), "{why}");
    }
    let read = PlanData::read(plan(json!([site(0, 80, route(to("gone")))]))).unwrap();
    let why = read.translation(&settings(&["192.0.2.1"]), "ok\n").unwrap_err();
    assert_eq!(why, "route r: the plan has no upstream gone");
    let files = json!({"format": 3, "sites": [], "upstreams": [], "files": {"a.crt": "%"}});
    let why = PlanData::read(files).unwrap().translation(&settings(&[]), "ok\n").unwrap_err();
    assert_eq!(why, "the file a.crt is not Base64");
}

#[test]
fn settings_without_a_place_in_the_format_are_errors() {
    let mut translation = PlanData::empty().translation(&settings(&[]), "ok\n").unwrap();
    let addresses = ["127.0.0.1".parse().unwrap()];
    assert!(PlanData::of(&translation, &addresses).is_ok());
    translation.sites.sites[0].routes[0].rules.satisfies_any = true;
    let why = PlanData::of(&translation, &addresses).unwrap_err();
    assert_eq!(why, "route /healthz: the format 3 has no place for all of its settings");
    assert!(PlanData::of(&translation, &[]).is_err(), "an address that the controller does not have");
}

#[test]
fn servers_of_unknown_upstreams_change_nothing() {
    let upstream = json!({"name": "a", "servers": [{"at": "192.0.2.1:80"}], "read_ms": 1, "connect_ms": 1, "send_ms": 1,
                          "retries_max": 0});
    let mut plan = PlanData::read(json!({"format": 3, "sites": [], "upstreams": [upstream]})).unwrap();
    let before = plan.clone();
    let list = |name: &str| BTreeMap::from([("a".to_owned(), Vec::new()), (name.to_owned(), Vec::new())]);
    assert_eq!(plan.set_servers(&list("b")), Err("the plan has no upstream b".to_owned()));
    assert_eq!(plan, before);
    assert_eq!(plan.set_servers(&list("a")), Ok(()));
    assert!(plan.upstreams[0].servers.is_empty());
}

#[test]
fn a_file_with_another_content_is_no_former_one() {
    let own = settings(&[]);
    let files = |content: &str| {
        let path = own.folder.join("a.crt");
        let files = Files::of(&own.folder, BTreeMap::from([(path, content.as_bytes().to_vec())]));
        Translation { files, ..PlanData::empty().translation(&own, "ok\n").unwrap() }
    };
    let addresses = ["127.0.0.1".parse().unwrap()];
    let former = files("former");
    let data = PlanData::of(&former, &addresses).unwrap();
    let text = |content: &str| {
        let next = PlanData::of_next(&files(content), &addresses, Some((&former, &data))).unwrap();
        next.files["a.crt"].clone()
    };
    assert!(Arc::ptr_eq(&text("former"), &data.files["a.crt"]));
    assert_eq!(*text("other"), STANDARD.encode("other"));
}
