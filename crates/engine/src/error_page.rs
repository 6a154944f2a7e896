//! The body of an error response, in the form that its client prefers: a small HTML page, JSON (RFC 9457), or a line of
//! text. Nothing here runs for a response that is not an error.

use flatout_wire::{Head, Status};

use crate::service::{Request, Response, is_request_id, sent_request_id, write_request_id};

/// The form of an error's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ErrorForm {
    Text,
    Html,
    Json,
}

/// Writes the body of an error for the client with this head, in place of another one. `detail` says more than the status;
/// it may contain text of the client.
///
/// The page shows the id of the request; a line of text only shows one that the client has sent.
pub fn write_error_page(request: &Request<'_>, detail: &str, response: &mut Response) {
    let form = request.head.field("accept").map_or(ErrorForm::Text, ErrorForm::of);
    write_with_id(form, &request.head, request.number, detail, response);
}

/// The same for the bytes of a head, which may have been changed since it was parsed.
pub fn write_error_page_of(head: &[u8], detail: &str, response: &mut Response) {
    write(field_of(head, b"accept"), field_of(head, b"x-request-id"), detail, response);
}

/// Writes an error without details into an empty response. What clients without preferences get is not put together each time.
pub fn write_error(request: &Request<'_>, status: Status, response: &mut Response) {
    let head = &request.head;
    response.set_status(status);
    match head.field("accept").map_or(ErrorForm::Text, ErrorForm::of) {
        ErrorForm::Text if head.field("x-request-id").is_none() => {
            response.encoded_fields(b"Content-Type: text/plain; charset=utf-8\r\nVary: Accept\r\n");
            let page = response.buffer();
            page.extend_from_slice(status.reason().as_bytes());
            page.push(b'\n');
        }
        form => write_with_id(form, head, request.number, "", response),
    }
}

/// Changes the default body of an error, which is the reason phrase of its status, to the form that the client with this head
/// prefers. Other bodies stay: somebody has chosen them. `number` is that of the request.
pub fn adapt_error_page(head: &Head<'_>, number: u64, response: &mut Response) {
    let reason = response.status().reason();
    let is_default = response.status().code() >= 400
        && response.body_bytes().and_then(|body| body.strip_suffix(b"\n")) == Some(reason.as_bytes())
        && response.field("content-type").is_some_and(|found| found.starts_with(b"text/plain"));
    if !is_default {
        return;
    }
    match head.field("accept").map_or(ErrorForm::Text, ErrorForm::of) {
        // As it is.
        ErrorForm::Text if head.field("x-request-id").is_none() => {
            response.header("Vary", "Accept");
        }
        form => write_with_id(form, head, number, "", response),
    }
}

fn write_with_id(form: ErrorForm, head: &Head<'_>, number: u64, detail: &str, response: &mut Response) {
    let (sent, mut id) = (sent_request_id(head), Vec::new());
    if sent.is_some() || (form != ErrorForm::Text && number != 0) {
        write_request_id(sent, number, &mut id);
    }
    write_as(form, std::str::from_utf8(&id).ok().filter(|id| !id.is_empty()), detail, response);
}

fn write(accept: Option<&[u8]>, id: Option<&[u8]>, detail: &str, response: &mut Response) {
    let form = accept.map_or(ErrorForm::Text, ErrorForm::of);
    let id = id.and_then(|id| std::str::from_utf8(id).ok()).filter(|id| is_request_id(id.as_bytes()));
    write_as(form, id, detail, response);
}

fn write_as(form: ErrorForm, id: Option<&str>, detail: &str, response: &mut Response) {
    let status = response.status();
    if response.field("content-type").is_some() {
        response.remove_header("content-type");
    }
    response.header("Content-Type", form.content_type()).header("Vary", "Accept");
    let page = response.buffer();
    page.clear();
    match form {
        ErrorForm::Text => text(status, detail, id, page),
        ErrorForm::Html => html(status, detail, id, page),
        ErrorForm::Json => json(status, detail, id, page),
    }
}

impl ErrorForm {
    fn content_type(self) -> &'static str {
        match self {
            ErrorForm::Text => "text/plain; charset=utf-8",
            ErrorForm::Html => "text/html; charset=utf-8",
            ErrorForm::Json => "application/problem+json",
        }
    }

    /// The first form that an `Accept` names; `*/*` alone is that of a program at a terminal.
    fn of(accept: &[u8]) -> ErrorForm {
        for range in accept.split(|&byte| byte == b',') {
            let mut parts = range.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
            let name = parts.next().unwrap_or_default().to_ascii_lowercase();
            let is_refused = parts.any(|part| matches!(part, b"q=0" | b"q=0.0" | b"q=0.00" | b"q=0.000"));
            match &*name {
                _ if is_refused => {}
                b"text/html" | b"application/xhtml+xml" => return ErrorForm::Html,
                b"application/json" | b"application/problem+json" => return ErrorForm::Json,
                b"text/plain" => return ErrorForm::Text,
                _ => {}
            }
        }
        ErrorForm::Text
    }
}

/// The first field of this name.
fn field_of<'h>(head: &'h [u8], name: &[u8]) -> Option<&'h [u8]> {
    head.split(|&byte| byte == b'\n').skip(1).find_map(|line| {
        let (this, value) = line.split_at_checked(line.iter().position(|&byte| byte == b':')?)?;
        this.eq_ignore_ascii_case(name).then(|| value.get(1..).unwrap_or_default().trim_ascii())
    })
}

fn text(status: Status, detail: &str, id: Option<&str>, page: &mut Vec<u8>) {
    escape(if detail.is_empty() { status.reason() } else { detail }, &[], page);
    if let Some(id) = id {
        append(page, &["\nrequest ", id]);
    }
    page.push(b'\n');
}

fn html(status: Status, detail: &str, id: Option<&str>, page: &mut Vec<u8>) {
    let code = status.code().to_string();
    let title = [code.as_str(), " ", status.reason()];
    append(page, &[HTML_BEFORE_TITLE]);
    append(page, &title);
    append(page, &[HTML_AFTER_TITLE]);
    append(page, &title);
    append(page, &["</h1>"]);
    if !detail.is_empty() {
        append(page, &["<p>"]);
        escape(detail, HTML_ESCAPES, page);
        append(page, &["</p>"]);
    }
    if let Some(id) = id {
        append(page, &["<p><small>request ", id, "</small></p>"]);
    }
    page.push(b'\n');
}

fn json(status: Status, detail: &str, id: Option<&str>, page: &mut Vec<u8>) {
    append(page, &["{\"status\":", &status.code().to_string(), ",\"title\":\"", status.reason(), "\""]);
    if !detail.is_empty() {
        append(page, &[",\"detail\":\""]);
        escape(detail, JSON_ESCAPES, page);
        append(page, &["\""]);
    }
    if let Some(id) = id {
        append(page, &[",\"request_id\":\"", id, "\""]);
    }
    append(page, &["}\n"]);
}

const HTML_BEFORE_TITLE: &str = "<!doctype html><html lang=en><meta charset=utf-8>\
    <meta name=viewport content=\"width=device-width\"><meta name=color-scheme content=\"light dark\"><title>";

const HTML_AFTER_TITLE: &str = "</title>\
    <style>body{font:1.1rem/1.5 system-ui,sans-serif;max-width:36rem;margin:20vh auto;padding:0 1rem}</style><h1>";

const HTML_ESCAPES: &[(char, &str)] = &[('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;")];
const JSON_ESCAPES: &[(char, &str)] = &[('\\', "\\\\"), ('"', "\\\"")];

fn append(page: &mut Vec<u8>, texts: &[&str]) {
    texts.iter().for_each(|text| page.extend_from_slice(text.as_bytes()));
}

/// Appends text with these characters replaced, and without those that could control a terminal.
fn escape(text: &str, escapes: &[(char, &str)], page: &mut Vec<u8>) {
    for char in text.chars().filter(|char| !char.is_control()) {
        match escapes.iter().find(|(escaped, _)| *escaped == char) {
            Some((_, replacement)) => append(page, &[replacement]),
            None => append(page, &[char.encode_utf8(&mut [0; 4])]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(accept: Option<&[u8]>, id: &[u8], detail: &str) -> String {
        let mut response = Response::with_status(Status::NOT_FOUND);
        write(accept, Some(id), detail, &mut response);
        String::from_utf8(response.body_bytes().unwrap().to_vec()).unwrap()
    }

    #[test]
    fn the_form_follows_the_client() {
        for (accept, expected) in [
            ("text/html,application/xhtml+xml,*/*;q=0.8", ErrorForm::Html),
            ("application/json", ErrorForm::Json),
            ("*/*", ErrorForm::Text),
            ("text/html;q=0, application/json", ErrorForm::Json),
            ("Text/HTML", ErrorForm::Html),
        ] {
            assert_eq!(ErrorForm::of(accept.as_bytes()), expected, "{accept}");
        }
        assert_eq!(body(None, b"", ""), "Not Found\n");
        assert_eq!(
            body(Some(b"application/json"), b"a-1", "no \"x\""),
            "{\"status\":404,\"title\":\"Not Found\",\"detail\":\"no \\\"x\\\"\",\"request_id\":\"a-1\"}\n"
        );
    }

    #[test]
    fn text_of_clients_is_escaped() {
        let page = body(Some(b"text/html"), b"<b>", "no site for <script>\u{1b}[1m");
        assert!(page.contains("no site for &lt;script&gt;[1m") && !page.contains("request "), "{page}");
        assert!(!body(Some(b"text/html"), &[b'a'; 200], "").contains("request "));
    }

    #[test]
    fn fields_of_a_head_in_bytes_are_found() {
        let head = b"GET / HTTP/1.1\r\nHost: a\r\nACCEPT:  text/html \r\n\r\n";
        assert_eq!(field_of(head, b"accept"), Some(&b"text/html"[..]));
        assert_eq!(field_of(head, b"x-request-id"), None);
    }
}
