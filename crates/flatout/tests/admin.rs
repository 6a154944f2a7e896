//! The admin listener of an application.

mod socket;

use std::io::{Read, Write};
use std::net::TcpStream;

use flatout::engine::Address;
use flatout::metrics::{Counter, Figures};
use flatout::test::Client;
use flatout::{Admin, App, State};
use socket::{ask, get, serve};

fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(socket::TIME_MAX)).unwrap();
    let request = get("/metrics").replace("Host: t", "Host: localhost");
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn requests_and_figures_of_the_application_are_shown() {
    let figures = Figures::new();
    let paid = figures.counter("shop_orders", "Orders", &[("state", "paid")]);
    let app = App::new()
        .state(paid)
        .get("/pay", |State(paid): State<Counter>| paid.add(1))
        .admin(Admin::on("127.0.0.1:0").figures(figures));
    let server = serve(app);
    let Address::Tcp(admin) = server.server.as_ref().unwrap().admin_addresses()[0].clone() else { panic!() };
    let admin = admin.to_string();
    for _ in 0..3 {
        assert!(ask(&server, &get("/pay")).starts_with("HTTP/1.1 204"));
    }
    assert!(ask(&server, &get("/none")).starts_with("HTTP/1.1 404"));
    // A request is counted when its turn ends, a moment after the response.
    let began = std::time::Instant::now();
    let text = loop {
        let text = scrape(&admin);
        if text.contains("status=\"4xx\"} 1") || began.elapsed() > socket::TIME_MAX {
            break text;
        }
        std::thread::yield_now();
    };
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert!(text.contains("shop_orders_total{state=\"paid\"} 3\n"), "{text}");
    assert!(text.contains("flatout_requests_total"), "{text}");
    assert!(ask(&server, &get("/metrics")).starts_with("HTTP/1.1 404"), "not for everybody");
    drop(server);
    assert!(TcpStream::connect(&admin).is_err(), "it ends with the server");
}

#[cfg(feature = "push")]
#[test]
fn channels_are_shown() {
    let publisher = flatout::push::Publisher::new();
    let app = App::new().push("/live/{channel}", &publisher).admin(Admin::on("127.0.0.1:0").push(&publisher));
    let server = serve(app);
    let Address::Tcp(admin) = server.server.as_ref().unwrap().admin_addresses()[0].clone() else { panic!() };
    publisher.publish("a", "x").unwrap();
    let text = scrape(&admin.to_string());
    assert!(text.contains("flatout_push_published_total 1\n"), "{text}");
}

#[test]
fn invalid_settings_are_reported_at_startup() {
    let figures = Figures::new();
    figures.counter("a-b", "not a name", &[]);
    for (admin, said) in [
        (Admin::on("nonsense"), "admin: "),
        (Admin::on("0.0.0.0:0"), "could reach"),
        (Admin::on("127.0.0.1:0").figures(figures), "a-b"),
    ] {
        let Err(error) = Client::over_socket(App::new().get("/", || "x").admin(admin)) else {
            panic!("{said}")
        };
        assert!(error.to_string().contains(said), "{error}");
    }
    assert!(Client::over_socket(App::new().get("/", || "x").admin(Admin::on("0.0.0.0:0").public())).is_ok());
}
