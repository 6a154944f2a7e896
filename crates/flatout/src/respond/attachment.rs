//! Responses that a browser saves.

use flatout_engine::Response;

use super::Respond;

/// The second element, to be saved under this name instead of displayed (`Content-Disposition`, RFC 6266).
///
/// ```
/// use flatout::{App, Attachment, test::Client};
///
/// let client = Client::new(App::new().get("/", || Attachment("Übersicht 1.csv", "a;b")))?;
/// let answer = client.get("/").send();
/// let expected = "attachment; filename=\"_bersicht 1.csv\"; filename*=UTF-8''%C3%9Cbersicht%201.csv";
/// assert_eq!(answer.header("Content-Disposition"), Some(expected));
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment<N, T>(pub N, pub T);

impl<N: AsRef<str>, T: Respond> Respond for Attachment<N, T> {
    fn respond(self, response: &mut Response) {
        self.1.respond(response);
        response
            .remove_header("Content-Disposition")
            .header("Content-Disposition", disposition(self.0.as_ref()));
    }
}

/// The name for old clients, with `_` for characters they may not support, and the full name (RFC 8187) if they differ.
fn disposition(name: &str) -> String {
    let is_plain = |letter: char| (letter.is_ascii_graphic() || letter == ' ') && !"\"\\%/".contains(letter);
    let plain: String = name.chars().map(|letter| if is_plain(letter) { letter } else { '_' }).collect();
    let mut value = format!("attachment; filename=\"{plain}\"");
    if plain != name {
        value.push_str("; filename*=UTF-8''");
        for byte in name.bytes() {
            if byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&byte) {
                value.push(byte as char);
            } else {
                value.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_bring_parameters_or_lines() {
        for (name, expected) in [
            ("a.txt", "attachment; filename=\"a.txt\""),
            ("a\"; x=\"y", "attachment; filename=\"a_; x=_y\"; filename*=UTF-8''a%22%3B%20x%3D%22y"),
            ("a\r\nb", "attachment; filename=\"a__b\"; filename*=UTF-8''a%0D%0Ab"),
            ("../b", "attachment; filename=\".._b\"; filename*=UTF-8''..%2Fb"),
        ] {
            assert_eq!(disposition(name), expected);
        }
    }
}
