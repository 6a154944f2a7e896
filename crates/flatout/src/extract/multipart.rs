//! Forms with files, streamed.

use std::path::Path;

use bytes::Bytes;
use flatout_engine::{BodyFault, say};
use flatout_wire::Status;
use http_body_util::BodyDataStream;
use tokio::io::AsyncWriteExt;

use super::{BodyUse, Extract, Streamed};
use crate::{Context, Problem};

/// Default of [`Multipart::parts_max`]: parts of one form.
const PARTS_MAX: usize = 100;

/// Default of [`Part::bytes_max`] for [`Part::bytes`] and [`Part::text`], which hold a part in memory.
const PART_BYTES_MAX: u64 = 1 << 20;

/// A form with files (`multipart/form-data`), read part by part while it arrives; only one piece of a part is in memory.
///
/// The total size is limited by [`App::body_limit`](crate::App::body_limit) or the server's limit, the number of parts by
/// [`Multipart::parts_max`], and each part by [`Part::bytes_max`].
///
/// # Errors
/// 415 for another content type, 400 for a malformed form or a missing boundary, 413 over a limit.
///
/// ```
/// use flatout::{App, Multipart, Problem, test::Client};
///
/// let app = App::new().post("/", async |mut form: Multipart| {
///     let mut names = Vec::new();
///     while let Some(part) = form.next().await? {
///         let name = part.name().unwrap_or("?").to_owned();
///         names.push(format!("{name}: {} bytes", part.bytes().await?.len()));
///     }
///     Ok::<_, Problem>(names.join(", "))
/// });
/// let call = Client::new(app)?;
/// let call = call.post("/").header("Content-Type", "multipart/form-data; boundary=x");
/// let body = "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nhello\r\n--x--\r\n";
/// assert_eq!(call.body(body).send().text(), "a: 5 bytes");
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug)]
pub struct Multipart {
    form: multer::Multipart<'static>,
    parts_left: usize,
}

/// One part of a form. It has to be read or dropped before the next part can be read.
///
/// ```
/// use flatout::test::{Client, MultipartForm};
/// use flatout::{App, Multipart, Problem, Status};
///
/// let app = App::new().post("/photos", async |form: Multipart| {
///     let mut form = form.parts_max(10);
///     while let Some(part) = form.next().await? {
///         if part.content_type() != Some("image/png") {
///             return Err(Problem::new(Status::UNSUPPORTED_MEDIA_TYPE));
///         }
///         let name = part.file_name().ok_or(Problem::new(Status::BAD_REQUEST))?.to_owned();
///         part.bytes_max(5 << 20).save(format!("photos/{name}")).await?;
///     }
///     Ok(Status::CREATED)
/// });
/// let form = MultipartForm::new().file("photo", "a.txt", "text/plain", "no photo");
/// let answer = Client::new(app)?.post("/photos").form(&form).send();
/// assert_eq!(answer.status(), Status::UNSUPPORTED_MEDIA_TYPE);
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug)]
pub struct Part {
    field: multer::Field<'static>,
    bytes_left: Option<u64>,
}

impl Extract for Multipart {
    const BODY: BodyUse = BodyUse::Stream;

    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        let kind = context.header("content-type").and_then(|kind| std::str::from_utf8(kind).ok());
        let boundary = multer::parse_boundary(kind.unwrap_or_default()).map_err(|error| match error {
            multer::Error::NoBoundary => refused("the content type has no boundary"),
            _ => Problem::new(Status::UNSUPPORTED_MEDIA_TYPE)
                .detail("the request body must be multipart/form-data"),
        })?;
        let Streamed(body) = Streamed::extract(context)?;
        let form = multer::Multipart::new(BodyDataStream::new(body), boundary);
        Ok(Multipart { form, parts_left: PARTS_MAX })
    }
}

impl Multipart {
    /// Sets the maximum number of parts; the default is 100.
    pub fn parts_max(mut self, parts: usize) -> Self {
        self.parts_left = parts;
        self
    }

    /// The next part, or `None` at the end of the form.
    ///
    /// # Errors
    /// The form is malformed, incomplete, or over a limit.
    pub async fn next(&mut self) -> Result<Option<Part>, Problem> {
        let Some(field) = self.form.next_field().await.map_err(problem)? else { return Ok(None) };
        let Some(left) = self.parts_left.checked_sub(1) else {
            return Err(too_large("the form has too many parts"));
        };
        self.parts_left = left;
        Ok(Some(Part { field, bytes_left: None }))
    }
}

impl Part {
    /// The field's name.
    pub fn name(&self) -> Option<&str> {
        self.field.name()
    }

    /// The file name without folders, if it is a valid file name; the client may have sent any path.
    pub fn file_name(&self) -> Option<&str> {
        let name = self.field.file_name()?.rsplit(['/', '\\']).next()?;
        let is_name = !matches!(name, "" | "." | "..") && !name.contains(char::is_control);
        is_name.then_some(name)
    }

    /// The content type as given by the client.
    pub fn content_type(&self) -> Option<&str> {
        self.field.headers().get(http::header::CONTENT_TYPE)?.to_str().ok()
    }

    /// Sets the maximum size in bytes. By default, a part that is streamed or saved has no limit, and a part held in
    /// memory has 1 MiB.
    pub fn bytes_max(mut self, bytes: u64) -> Self {
        self.bytes_left = Some(bytes);
        self
    }

    /// The next piece of the part, or `None` at its end.
    ///
    /// # Errors
    /// As for [`Multipart::next`].
    ///
    /// ```
    /// use flatout::test::{Client, MultipartForm};
    /// use flatout::{App, Multipart, Problem};
    ///
    /// let app = App::new().post("/bytes", async |mut form: Multipart| {
    ///     let mut bytes = 0;
    ///     while let Some(mut part) = form.next().await? {
    ///         while let Some(piece) = part.chunk().await? {
    ///             bytes += piece.len();
    ///         }
    ///     }
    ///     Ok::<_, Problem>(bytes.to_string())
    /// });
    /// let form = MultipartForm::new().text("who", "ada").text("what", "hello");
    /// assert_eq!(Client::new(app)?.post("/bytes").form(&form).send().text(), "8");
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Problem> {
        let chunk = self.field.chunk().await.map_err(problem)?;
        if let (Some(chunk), Some(left)) = (&chunk, &mut self.bytes_left) {
            *left = left
                .checked_sub(chunk.len() as u64)
                .ok_or_else(|| too_large("a part of the form is too large"))?;
        }
        Ok(chunk)
    }

    /// All of it, in memory.
    ///
    /// # Errors
    /// As for [`Multipart::next`].
    pub async fn bytes(mut self) -> Result<Vec<u8>, Problem> {
        self.bytes_left.get_or_insert(PART_BYTES_MAX);
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    /// All of it, as text.
    ///
    /// # Errors
    /// As for [`Multipart::next`], and 400 if it is not UTF-8.
    ///
    /// ```
    /// use flatout::test::{Client, MultipartForm};
    /// use flatout::{App, Multipart, Problem, Status};
    ///
    /// let app = App::new().post("/name", async |mut form: Multipart| {
    ///     let part = form.next().await?.ok_or(Problem::new(Status::BAD_REQUEST))?;
    ///     part.text().await
    /// });
    /// let form = MultipartForm::new().text("name", "ada");
    /// assert_eq!(Client::new(app)?.post("/name").form(&form).send().text(), "ada");
    /// # Ok::<(), flatout::Error>(())
    /// ```
    pub async fn text(self) -> Result<String, Problem> {
        String::from_utf8(self.bytes().await?).map_err(|_| refused("a part of the form is not UTF-8"))
    }

    /// Writes the part to a new file and returns its size in bytes. If the part is incomplete, the file is removed.
    ///
    /// # Errors
    /// As for [`Multipart::next`], and 500 if the file exists already or cannot be written.
    pub async fn save(mut self, path: impl AsRef<Path>) -> Result<u64, Problem> {
        let path = path.as_ref();
        let fault = |error: std::io::Error| {
            say(format_args!("{}: {error}", path.display()));
            Problem::new(Status::INTERNAL_SERVER_ERROR)
        };
        let mut file =
            tokio::fs::File::options().write(true).create_new(true).open(path).await.map_err(fault)?;
        // Also when the client disconnects and the handler is dropped.
        let mut unfinished = Unfinished(Some(path));
        let mut bytes = 0;
        while let Some(chunk) = self.chunk().await? {
            file.write_all(&chunk).await.map_err(fault)?;
            bytes += chunk.len() as u64;
        }
        file.flush().await.map_err(fault)?;
        unfinished.0 = None;
        Ok(bytes)
    }
}

/// A file that is removed, unless it was finished.
struct Unfinished<'p>(Option<&'p Path>);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0 {
            // If it cannot be removed, nothing can be done here.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn refused(detail: &str) -> Problem {
    Problem::new(Status::BAD_REQUEST).detail(detail)
}

fn too_large(detail: &str) -> Problem {
    Problem::new(Status::CONTENT_TOO_LARGE).detail(detail)
}

fn problem(error: multer::Error) -> Problem {
    match error {
        multer::Error::StreamReadFailed(fault) => match fault.downcast_ref::<BodyFault>() {
            Some(BodyFault::TooLarge) => too_large("the request body is too large"),
            _ => refused("the form is incomplete"),
        },
        multer::Error::IncompleteStream | multer::Error::IncompleteFieldData { .. } => {
            refused("the form is incomplete")
        }
        error => refused(&format!("the form: {error}")),
    }
}
