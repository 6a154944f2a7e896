//! Multipart forms with files, including malicious ones.

mod socket;

use std::io::Write;
use std::path::PathBuf;

use flatout::test::{Answer, Client};
use flatout::{App, Multipart, Problem, Status};
use socket::{ask, connect, serve};

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// `/list` names the parts, `/small` allows eight bytes each, `/save` keeps the files.
fn app(folder: PathBuf) -> App {
    App::new()
        .post("/list", async |mut form: Multipart| {
            let mut parts = Vec::new();
            while let Some(part) = form.next().await? {
                let (name, file) = (format!("{:?}", part.name()), format!("{:?}", part.file_name()));
                parts.push(format!(
                    "{name} {file} {:?} {}",
                    part.content_type().map(str::to_owned),
                    part.text().await?
                ));
            }
            Ok::<_, Problem>(parts.join("\n"))
        })
        .post("/count", async |form: Multipart| {
            let mut form = form.parts_max(20_000);
            let mut count = 0;
            while form.next().await?.is_some() {
                count += 1;
            }
            Ok::<_, Problem>(count.to_string())
        })
        .post("/small", async |mut form: Multipart| {
            while let Some(part) = form.next().await? {
                part.bytes_max(8).bytes().await?;
            }
            Ok::<_, Problem>("small")
        })
        .post("/save", async move |mut form: Multipart| {
            let mut bytes = 0;
            while let Some(part) = form.next().await? {
                let name = part.file_name().ok_or(Problem::new(Status::BAD_REQUEST))?.to_owned();
                bytes += part.save(folder.join(name)).await?;
            }
            Ok::<_, Problem>(bytes.to_string())
        })
        .body_limit(4 << 20)
}

fn part(disposition: &str, body: &str) -> String {
    format!("--x\r\nContent-Disposition: form-data; {disposition}\r\n\r\n{body}\r\n")
}

fn post(app: App, path: &str, body: String) -> Answer {
    let client = Client::new(app).unwrap();
    client.post(path).header("Content-Type", "multipart/form-data; boundary=x").body(body).send()
}

#[test]
fn parts_come_with_names_and_types() {
    let body = part("name=\"a\"", "1")
        + "--x\r\nContent-Disposition: form-data; name=\"f\"; filename=\"b.txt\"\r\nContent-Type: text/plain\r\n\r\n2\r\n--x--\r\n";
    let answer = post(app(folder("multipart-names")), "/list", body);
    assert_eq!(answer.text(), "Some(\"a\") None None 1\nSome(\"f\") Some(\"b.txt\") Some(\"text/plain\") 2");
}

#[test]
fn names_that_are_paths_lose_their_folders() {
    for (sent, expected) in [
        ("../../etc/passwd", "Some(\"passwd\")"),
        ("/etc/passwd", "Some(\"passwd\")"),
        ("C:\\\\windows\\\\x.dll", "Some(\"x.dll\")"),
        ("..", "None"),
        (".", "None"),
        ("a/", "None"),
        ("a\0b", "None"),
    ] {
        let body = part(&format!("name=\"f\"; filename=\"{sent}\""), "1") + "--x--\r\n";
        let answer = post(app(folder("multipart-paths")), "/list", body);
        if answer.status() == Status::OK {
            assert_eq!(answer.text(), format!("Some(\"f\") {expected} None 1"), "{sent}");
        } else {
            assert_eq!((answer.status(), expected), (Status::BAD_REQUEST, "None"), "{sent}");
        }
    }
}

#[test]
fn invalid_forms_are_refused() {
    let folder = folder("multipart-bad");
    let client = Client::new(app(folder.clone())).unwrap();
    let typed =
        |kind: &str| client.post("/list").header("Content-Type", kind).body("--x--\r\n").send().status();
    assert_eq!(typed("multipart/form-data"), Status::BAD_REQUEST);
    assert_eq!(typed("application/json"), Status::UNSUPPORTED_MEDIA_TYPE);
    for body in [
        "",
        "no boundary at all",
        "--y\r\n\r\n--y--",
        "--x\r\n",
        "--x\r\nContent-Disposition: form-data; name=\"a\"",
        "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nwithout end",
        "--x\r\n\r\nno headers",
    ] {
        let answer = post(app(folder.clone()), "/list", body.to_owned());
        assert_eq!(answer.status(), Status::BAD_REQUEST, "{body}");
    }
}

#[test]
fn limits_of_parts() {
    let folder = folder("multipart-limits");
    let many = (0..10_000).map(|_| part("name=\"a\"", "")).collect::<String>() + "--x--\r\n";
    assert_eq!(post(app(folder.clone()), "/list", many.clone()).status(), Status::CONTENT_TOO_LARGE);
    assert_eq!(post(app(folder.clone()), "/count", many).text(), "10000");
    let two =
        |bytes: usize| part("name=\"a\"", "12345678") + &part("name=\"b\"", &"x".repeat(bytes)) + "--x--\r\n";
    assert_eq!(post(app(folder.clone()), "/small", two(8)).text(), "small");
    assert_eq!(post(app(folder.clone()), "/small", two(9)).status(), Status::CONTENT_TOO_LARGE);
    // A part in memory has its own limit.
    assert_eq!(post(app(folder), "/list", two((1 << 20) + 1)).status(), Status::CONTENT_TOO_LARGE);
}

fn head(path: &str, framing: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Type: multipart/form-data; boundary=x\r\n{framing}\r\n\r\n"
    )
}

#[test]
fn files_are_saved_and_incomplete_ones_removed() {
    let folder = folder("multipart-save");
    let server = serve(app(folder.clone()));
    let body = part("name=\"f\"; filename=\"whole.bin\"", &"x".repeat(3_000_000)) + "--x--\r\n";
    let length = format!("Content-Length: {}", body.len());
    let answer = ask(&server, &format!("{}{body}", head("/save", &length)));
    assert!(answer.ends_with("3000000"), "{answer}");
    assert_eq!(std::fs::metadata(folder.join("whole.bin")).unwrap().len(), 3_000_000);
    // The file exists already.
    let small = part("name=\"f\"; filename=\"whole.bin\"", "other") + "--x--\r\n";
    let length = format!("Content-Length: {}", small.len());
    let again = ask(&server, &format!("{}{small}", head("/save", &length)));
    assert!(again.starts_with("HTTP/1.1 500 "), "{again}");
    assert_eq!(std::fs::metadata(folder.join("whole.bin")).unwrap().len(), 3_000_000);

    // Endless: the limit of the body applies.
    let mut stream = connect(&server);
    stream.write_all(head("/save", "Transfer-Encoding: chunked").as_bytes()).unwrap();
    let start = part("name=\"f\"; filename=\"endless.bin\"", "x");
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    stream.write_all(chunk(start.trim_end()).as_bytes()).unwrap();
    let piece = chunk(&"x".repeat(64 << 10));
    let sent = (0..1000).take_while(|_| stream.write_all(piece.as_bytes()).is_ok()).count();
    assert!(sent < 1000);
    let mut answer = Vec::new();
    let _ = std::io::Read::read_to_end(&mut stream, &mut answer);
    drop(stream);
    drop(server);
    assert!(!folder.join("endless.bin").exists());
}

#[test]
fn a_client_that_goes_away_leaves_no_file() {
    let folder = folder("multipart-gone");
    let server = serve(app(folder.clone()));
    let mut stream = connect(&server);
    stream.write_all(head("/save", "Content-Length: 1000000").as_bytes()).unwrap();
    stream.write_all(part("name=\"f\"; filename=\"gone.bin\"", &"x".repeat(200_000)).as_bytes()).unwrap();
    let there = |wanted: bool| {
        let began = std::time::Instant::now();
        while folder.join("gone.bin").exists() != wanted {
            assert!(began.elapsed() < socket::TIME_MAX);
            std::thread::yield_now();
        }
    };
    there(true);
    drop(stream);
    there(false);
}
