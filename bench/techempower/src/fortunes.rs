//! The page of fortunes, with sailfish as in xitca-web's entry; the other entries' templates cost more.

use sailfish::runtime::{Buffer, Render};

/// A row; its message is a `String`, or bytes of the database's response.
pub struct Fortune<M> {
    pub id: i32,
    pub message: M,
}

const ADDED: &str = "Additional fortune added at request time.";
const BEGIN: &str =
    "<!DOCTYPE html><html><head><title>Fortunes</title></head><body><table><tr><th>id</th><th>message</th></tr>";
const END: &str = "</table></body></html>";

pub fn page<M: AsRef<str> + From<&'static str>>(mut fortunes: Vec<Fortune<M>>) -> String {
    fortunes.push(Fortune { id: 0, message: ADDED.into() });
    fortunes.sort_by(|one, other| one.message.as_ref().cmp(other.message.as_ref()));
    let mut page = Buffer::with_capacity(1500);
    page.push_str(BEGIN);
    for fortune in &fortunes {
        page.push_str("<tr><td>");
        let _ = fortune.id.render_escaped(&mut page);
        page.push_str("</td><td>");
        let _ = fortune.message.as_ref().render_escaped(&mut page);
        page.push_str("</td></tr>");
    }
    page.push_str(END);
    page.into_string()
}
