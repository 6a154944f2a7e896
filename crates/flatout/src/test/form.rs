//! Forms with files, as browsers send them.

use std::fmt::Write;

/// A form with files, for [`Call::form`](super::Call::form).
///
/// ```
/// # #[cfg(feature = "multipart")] {
/// use flatout::{App, Multipart, Problem, test::{Client, MultipartForm}};
///
/// async fn upload(mut form: Multipart) -> Result<String, Problem> {
///     let mut seen = String::new();
///     while let Some(part) = form.next().await? {
///         seen += &format!("{:?} ", part.name());
///     }
///     Ok(seen)
/// }
/// let form = MultipartForm::new().text("who", "ada").file("what", "a.txt", "text/plain", "contents");
/// let client = Client::new(App::new().post("/", upload)).unwrap();
/// assert_eq!(client.post("/").form(&form).send().text(), "Some(\"who\") Some(\"what\") ");
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct MultipartForm(Vec<u8>);

/// Does not occur in what tests send.
const BOUNDARY: &str = "flatout-test-boundary-0x9d1b";

impl MultipartForm {
    /// A form without parts.
    pub fn new() -> MultipartForm {
        MultipartForm::default()
    }

    /// Adds a text.
    pub fn text(self, name: &str, value: &str) -> MultipartForm {
        self.part(&format!("name=\"{}\"", quoted(name)), "", value.as_bytes())
    }

    /// Adds a file.
    pub fn file(
        self,
        name: &str,
        file_name: &str,
        content_type: &str,
        bytes: impl AsRef<[u8]>,
    ) -> MultipartForm {
        let names = format!("name=\"{}\"; filename=\"{}\"", quoted(name), quoted(file_name));
        self.part(&names, content_type, bytes.as_ref())
    }

    pub(super) fn content_type(&self) -> String {
        format!("multipart/form-data; boundary={BOUNDARY}")
    }

    pub(super) fn body(&self) -> Vec<u8> {
        [&self.0, format!("--{BOUNDARY}--\r\n").as_bytes()].concat()
    }

    fn part(mut self, names: &str, content_type: &str, bytes: &[u8]) -> MultipartForm {
        let mut head = format!("--{BOUNDARY}\r\nContent-Disposition: form-data; {names}\r\n");
        if !content_type.is_empty() {
            // Writing to a `String` cannot fail.
            let _ = write!(head, "Content-Type: {content_type}\r\n");
        }
        self.0.extend_from_slice(&[head.as_bytes(), b"\r\n", bytes, b"\r\n"].concat());
        self
    }
}

/// As in the Fetch standard.
fn quoted(name: &str) -> String {
    name.replace('\r', "%0D").replace('\n', "%0A").replace('"', "%22")
}
