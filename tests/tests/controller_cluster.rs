//! `flatout controller` with an API server: watches, statuses, an API server that goes away, two processes.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use flatout_tests::api_server::ApiServer;
use flatout_tests::peers::free_port;
use flatout_tests::{Answer, Folder, Server, Signal, program, until};
use serde_json::{Value, json};

const GATEWAYS: &str = "/apis/gateway.networking.k8s.io/v1/gateways";
const ROUTES: &str = "/apis/gateway.networking.k8s.io/v1/httproutes";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const LEASES: &str = "/apis/coordination.k8s.io/v1/leases";

/// An API server with a gateway and a route to a service without endpoints.
fn api_server(port: u16) -> ApiServer {
    let api = ApiServer::start();
    let metadata = |name: &str| json!({"name": name, "namespace": "default", "generation": 1});
    api.put(
        "/apis/gateway.networking.k8s.io/v1/gatewayclasses",
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "flatout"},
               "spec": {"controllerName": "flatout.dev/controller"}}),
    );
    api.put(
        GATEWAYS,
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": metadata("gw"),
               "spec": {"gatewayClassName": "flatout", "listeners": [{"name": "http", "port": port, "protocol": "HTTP"}]}}),
    );
    api.put(
        "/api/v1/services",
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata("app"), "spec": {"ports": [{"port": 80}]}}),
    );
    api.put(ROUTES, route("r", "/"));
    api
}

fn route(name: &str, path: &str) -> Value {
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
           "metadata": {"name": name, "namespace": "default", "generation": 1},
           "spec": {"parentRefs": [{"name": "gw"}], "rules": [{"matches": [{"path": {"type": "PathPrefix", "value": path}}],
                    "backendRefs": [{"name": "app", "port": 80}]}]}})
}

fn slice(port: u16) -> Value {
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
           "metadata": {"name": "app-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "app"}},
           "ports": [{"name": "", "port": port}], "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": true}}]})
}

fn controller(api: &ApiServer, folder: &Folder, address: &str) -> Server {
    let mut command = Command::new(program("flatout"));
    command.args(["controller", "--address", address, "--workers", "1", "--health"]);
    command.arg(format!("{address}:{}", free_port()));
    command.arg("--certificates").arg(folder.0.join(format!("state-{address}")));
    Server::start({
        command.env("KUBECONFIG", api.config(folder));
        command
    })
}

fn get(address: &str, port: u16) -> Answer {
    let mut stream = TcpStream::connect((address, port)).unwrap();
    stream.set_read_timeout(Some(flatout_tests::PATIENCE)).unwrap();
    stream.write_all(b"GET /json HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    flatout_tests::answers(&flatout_tests::read_to_close(&mut stream), false).remove(0)
}

fn reason(status: &Value, pointer: &str, name: &str) -> String {
    let list = status.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default();
    let found = list.iter().find(|it| it["type"] == name).cloned().unwrap_or_default();
    format!("{} {}", found["status"].as_str().unwrap_or("-"), found["reason"].as_str().unwrap_or("-"))
}

#[test]
fn objects_of_an_api_server_are_served_and_get_their_status() {
    let (port, backend, folder) = (free_port(), Server::json(), Folder::new());
    let api = api_server(port);
    let server = controller(&api, &folder, "127.0.0.1");
    assert_eq!(get("127.0.0.1", port).status, 503, "no endpoint");
    api.put(SLICES, slice(backend.address.port()));
    until("the endpoint serves", || get("127.0.0.1", port).status == 200);
    assert!(!server.said().iter().any(|line| line.contains("reloaded")), "{:?}", server.said());
    let status = || api.object(GATEWAYS, "default", "gw").unwrap()["status"].clone();
    until("the status is written", || reason(&status(), "/conditions", "Programmed") == "True Programmed");
    assert_eq!(status()["listeners"][0]["attachedRoutes"], 1);
    assert_eq!(status()["addresses"][0]["value"], "127.0.0.1");
    assert!(status()["conditions"][0]["lastTransitionTime"].as_str().unwrap().ends_with('Z'));
    let of_route = || api.object(ROUTES, "default", "r").unwrap();
    until("the route's too", || {
        reason(&of_route(), "/status/parents/0/conditions", "ResolvedRefs") == "True ResolvedRefs"
    });
    api.remove("/api/v1/services", "default", "app");
    until("the missing service is reported", || {
        reason(&of_route(), "/status/parents/0/conditions", "ResolvedRefs") == "False BackendNotFound"
    });
    assert_eq!(get("127.0.0.1", port).status, 500);
    until("an event says so too", || {
        api.objects("/apis/events.k8s.io/v1/events").iter().any(|event| {
            event["reason"] == "BackendNotFound"
                && event["regarding"]["name"] == "r"
                && event["type"] == "Warning"
        })
    });
    let patches = api.patches();
    api.put(
        "/api/v1/services",
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "other", "namespace": "default"}}),
    );
    api.put(ROUTES, route("late", "/late"));
    until("the next route gets one", || {
        api.object(ROUTES, "default", "late").unwrap().pointer("/status/parents/0").is_some()
    });
    assert!(
        api.patches() <= patches + 2,
        "only what has changed is written: the route, and the gateway's count"
    );
}

/// A controller that serves a route: its port, its API server, itself, the server of the route, and its folder.
fn serving() -> (u16, ApiServer, Server, Server, Folder) {
    let (port, backend, folder) = (free_port(), Server::json(), Folder::new());
    let api = api_server(port);
    api.put(SLICES, slice(backend.address.port()));
    let server = controller(&api, &folder, "127.0.0.1");
    until("it serves", || get("127.0.0.1", port).status == 200);
    (port, api, server, backend, folder)
}

/// The API server goes away, and the controller reports it.
fn go_away(api: &ApiServer, server: &Server) {
    api.set_away(true);
    until("that is reported", || {
        server.said().iter().any(|line| line.contains("what was read stays in use"))
    });
}

#[test]
fn an_api_server_that_goes_away_leaves_the_last_plan_and_is_followed_again() {
    let (port, api, server, _backend, _folder) = serving();
    go_away(&api, &server);
    assert_eq!(get("127.0.0.1", port).status, 200);
    // Deleted while nobody could watch.
    api.remove(ROUTES, "default", "r");
    api.set_away(false);
    until("the change is found", || get("127.0.0.1", port).status == 404);
    until("it is reported", || server.said().iter().any(|line| line.contains("responds again")));
}

/// After an hour, the API server does not know any more what has changed meanwhile: it refuses to go on with the version that was read.
#[test]
fn changes_that_the_api_server_has_forgotten_are_found_by_a_new_list() {
    let (port, api, server, backend, _folder) = serving();
    go_away(&api, &server);
    api.remove(ROUTES, "default", "r");
    api.put(ROUTES, route("later", "/json"));
    api.remove(SLICES, "default", "app-1");
    let other = Server::json();
    api.put(SLICES, slice(other.address.port()));
    api.forget_events();
    assert_eq!(get("127.0.0.1", port).status, 200, "the last plan");
    api.set_away(false);
    drop(backend);
    // The old version is refused. Each of both errors is followed by a pause of up to five seconds.
    until("the new endpoint serves by the new route", || get("127.0.0.1", port).status == 200);
    until("the new route gets its status", || {
        let route = api.object(ROUTES, "default", "later").unwrap();
        reason(&route, "/status/parents/0/conditions", "Accepted") == "True Accepted"
    });
    assert!(api.refusals() > 0, "the changes were not in a watch");
    // What changes from now on is watched again.
    api.remove(ROUTES, "default", "later");
    until("the change is found", || get("127.0.0.1", port).status == 404);
}

/// The machine of the API server is gone, without having closed its connections.
#[test]
fn a_silent_api_server_is_followed_again() {
    let (port, api, server, _backend, _folder) = serving();
    until("it leads", || leads(&server));
    api.set_silent(true);
    api.remove(ROUTES, "default", "r");
    until("it stops leading", || server.said().iter().any(|line| line.contains("no statuses any more")));
    api.set_silent(false);
    assert_eq!(get("127.0.0.1", port).status, 200, "the last plan");
    // At most 35 seconds of silence, and a pause.
    until("the change is found", || get("127.0.0.1", port).status == 404);
    let count = |text: &str| server.said().iter().filter(|line| line.contains(text)).count();
    until("it leads again", || count("writes statuses") == 2);
}

/// The times in a Lease are those of its holder's clock.
#[test]
fn times_in_a_lease_do_not_decide_about_its_holder() {
    let (port, folder) = (free_port(), Folder::new());
    let api = api_server(port);
    let renew = |time: &str, number: u64| {
        api.put(
            LEASES,
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                   "metadata": {"name": "flatout-controller", "namespace": "flatout-system"},
                   "spec": {"holderIdentity": "another", "leaseDurationSeconds": 15, "renewTime": time, "leaseTransitions": number}}),
        );
    };
    // One that renews it lives, although its clock is decades behind.
    renew("2001-01-01T00:00:00.000000Z", 7);
    let server = controller(&api, &folder, "127.0.0.1");
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(20) {
        renew("2001-01-01T00:00:00.000000Z", 7);
        assert!(!leads(&server), "the other one lives");
        std::thread::sleep(Duration::from_secs(1));
    }
    // One that does not is gone, although its clock is decades ahead.
    renew("2091-01-01T00:00:00.000000Z", 7);
    until("the silent one is replaced", || leads(&server));
    let lease = api.object(LEASES, "flatout-system", "flatout-controller").unwrap();
    assert_eq!(lease["spec"]["leaseTransitions"], 8);
}

#[test]
fn a_leader_that_ends_gives_the_lease_back() {
    let (port, folder) = (free_port(), Folder::new());
    let api = api_server(port);
    let mut server = controller(&api, &folder, "127.0.0.1");
    until("it leads", || leads(&server));
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    let lease = || api.object(LEASES, "flatout-system", "flatout-controller").unwrap()["spec"].clone();
    assert_eq!(lease()["holderIdentity"], "");
    let began = Instant::now();
    let next = controller(&api, &folder, "127.0.0.2");
    until("the next one leads", || leads(&next));
    assert!(began.elapsed() < Duration::from_secs(14), "before the Lease would have expired");
    assert_eq!(lease()["leaseTransitions"], 1);
}

#[test]
fn one_of_two_processes_writes_statuses_and_both_serve() {
    let (port, backend, folder) = (free_port(), Server::json(), Folder::new());
    let api = api_server(port);
    api.put(SLICES, slice(backend.address.port()));
    let servers = ["127.0.0.1", "127.0.0.2"].map(|address| (controller(&api, &folder, address), address));
    for (_, address) in &servers {
        until("it serves", || get(address, port).status == 200);
    }
    until("there is a leader", || servers.iter().any(|(server, _)| leads(server)));
    let status = || api.object(GATEWAYS, "default", "gw").unwrap()["status"].clone();
    until("the status is written", || reason(&status(), "/conditions", "Programmed") == "True Programmed");
    assert_eq!(servers.iter().filter(|(server, _)| leads(server)).count(), 1);
    let lease = api.object(LEASES, "flatout-system", "flatout-controller").unwrap();
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap().to_owned();
    assert!(servers.iter().any(|(server, _)| holder.ends_with(&format!("-{}", server.pid()))), "{holder}");
}

fn leads(server: &Server) -> bool {
    server.said().iter().any(|line| line.contains("writes statuses"))
}

#[test]
fn ingresses_of_a_cluster_are_imported() {
    let (api, folder) = (ApiServer::start(), Folder::new());
    let import = |api: &ApiServer| {
        let mut command = Command::new(program("flatout"));
        let output = command
            .args(["import", "--ingress", "cluster"])
            .env("KUBECONFIG", api.config(&folder))
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, _, reason) = import(&api);
    assert!(code == Some(2) && reason.contains("there is no Ingress in the cluster"), "{reason}");
    api.put(
        "/apis/networking.k8s.io/v1/ingresses",
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "i", "namespace": "default"},
               "spec": {"rules": [{"host": "a.test", "http": {"paths": [{"path": "/", "pathType": "Prefix",
                        "backend": {"service": {"name": "app", "port": {"name": "web"}}}}]}}]}}),
    );
    api.put(
        "/api/v1/services",
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "app", "namespace": "default"},
               "spec": {"ports": [{"name": "web", "port": 8080}]}}),
    );
    let (code, objects, reason) = import(&api);
    assert_eq!(code, Some(0), "{reason}");
    // The number of the port is from the Service.
    assert!(objects.contains("kind: HTTPRoute") && objects.contains("8080"), "{objects}");
    api.set_away(true);
    assert_eq!(import(&api).0, Some(2), "an API server that is away");
}

/// Objects that do not change show nothing when their watch goes on.
#[test]
fn watches_without_changes_count_as_working_again() {
    let (port, api, server, _backend, _folder) = serving();
    go_away(&api, &server);
    api.set_away(false);
    // The kind stands before the error: `flatout: TIME warning: secrets: …`.
    let kinds = |words: &str| -> BTreeSet<String> {
        let lines = server.said().into_iter().filter(|line| line.contains(words));
        lines.filter_map(|line| Some(line.split(": ").nth(2)?.to_owned())).collect()
    };
    until("all kinds work again", || {
        kinds("what was read stays in use").is_subset(&kinds("the API server responds again"))
    });
    assert_eq!(get("127.0.0.1", port).status, 200);
}
