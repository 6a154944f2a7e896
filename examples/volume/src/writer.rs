//! The writer: takes files whole (`PUT /files/NAME`) or resumable (tus, below `/uploads`), and puts complete ones into the inbox.

use std::fmt;
use std::io::{self, ErrorKind, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flatout::engine::BodyFault;
use flatout::{
    App, BodyStream, Bytes, Headers, Path, Problem, Respond, Response, State, Status, Streamed, blocking,
};
use http_body_util::BodyExt;
use sha2::{Digest, Sha256};

use crate::name::Name;
use crate::store::{Folder, Part, Volume};
use crate::tus::{self, OpenUpload, Upload, UploadFault, Uploads};

/// Bytes that are gathered before they are written: a volume over a network has its costs for each write.
const WRITE_BYTES: usize = 1 << 20;

/// The status of tus for bytes that do not match their checksum.
const CHECKSUM_MISMATCH: u16 = 460;

/// Locked (RFC 4918).
const LOCKED: u16 = 423;

struct Writer {
    volume: Volume,
    uploads: Uploads,
    file_bytes_max: u64,
}

/// The writer for the uploads of a volume, with files of at most this size.
pub fn app(uploads: Uploads, file_bytes_max: u64) -> App {
    let volume = uploads.volume().clone();
    App::new()
        .state(Writer { volume, uploads, file_bytes_max })
        .plan(move |plan| plan.limits.body_bytes_max = file_bytes_max)
        .get("/healthz", blocking(is_healthy))
        .put("/files/{name}", put)
        .options("/uploads", |State(writer): State<Writer>| Tus::capabilities(writer.file_bytes_max))
        .post("/uploads", blocking(create))
        .get("/uploads/{id}", blocking(progress))
        .patch("/uploads/{id}", append)
        .delete("/uploads/{id}", blocking(remove))
}

/// Whether the volume can be written to.
fn is_healthy(State(writer): State<Writer>) -> Result<&'static str, Problem> {
    writer.volume.now().map(|_| "ok\n").map_err(|error| of_volume(&error))
}

/// A whole file. With `Content-Digest: sha-256=:…:` (RFC 9530) it is taken only if it has that digest.
async fn put(
    Path(name): Path<String>,
    Headers(headers): Headers,
    State(writer): State<Writer>,
    Streamed(body): Streamed,
) -> Result<(Status, String), Problem> {
    let name = Name::parse(&name).map_err(bad_request)?;
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let wanted = text("content-digest").map(digest_in).transpose().map_err(bad_request)?;
    let volume = writer.volume.clone();
    let part = on_thread(move || volume.part()).await.map_err(|error| of_volume(&error))?;
    let received = Digested { part, digest: Sha256::new() };
    let received = receive(body, received).await.map_err(|(_, fault)| fault.problem())?;
    let digest = received.digest.finalize();
    if wanted.is_some_and(|wanted| wanted != *digest) {
        return Err(bad_request("the body does not have the digest in Content-Digest"));
    }
    let to = writer.volume.path(Folder::Inbox, &name);
    on_thread(move || received.part.publish(&to)).await.map_err(|error| of_volume(&error))?;
    Ok((Status::CREATED, format!("sha-256=:{}:\n", STANDARD.encode(digest))))
}

/// The SHA-256 in a `Content-Digest`.
fn digest_in(field: &str) -> Result<Vec<u8>, String> {
    let value = field.split(',').find_map(|member| member.trim().strip_prefix("sha-256="));
    let encoded = value.and_then(|value| value.strip_prefix(':')?.strip_suffix(':'));
    let bytes = encoded.and_then(|encoded| STANDARD.decode(encoded).ok()).filter(|bytes| bytes.len() == 32);
    bytes.ok_or_else(|| format!("Content-Digest is {field:?}; `sha-256=:BASE64:` is supported"))
}

/// Begins an upload.
fn create(Headers(headers): Headers, State(writer): State<Writer>) -> Result<Tus, Problem> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    check_version(text("tus-resumable"))?;
    let length = text("upload-length").and_then(|length| length.parse::<u64>().ok());
    let length = length.ok_or_else(|| bad_request("Upload-Length must be a number of bytes"))?;
    if length > writer.file_bytes_max {
        let detail = format!("Upload-Length is {length}; {} bytes are allowed", writer.file_bytes_max);
        return Err(Problem::new(Status::CONTENT_TOO_LARGE).detail(detail));
    }
    let name = tus::name_in(text("upload-metadata").unwrap_or_default()).map_err(bad_request)?;
    let id = writer.uploads.create(&Upload { length, name: name.to_string() }).map_err(of_upload)?;
    if length == 0 {
        let open = writer.uploads.open(&id).map_err(of_upload)?;
        open.finish().map_err(|error| of_volume(&error))?;
    }
    Ok(Tus::new(Status::CREATED).with("Location", format!("/uploads/{id}")))
}

/// How much of an upload has come: for HEAD; GET has the same fields.
fn progress(Path(id): Path<String>, State(writer): State<Writer>) -> Result<Tus, Problem> {
    let (upload, offset) = writer.uploads.find(&id).map_err(of_upload)?;
    let about = Tus::new(Status::OK).with("Cache-Control", "no-store".to_owned());
    Ok(about.with("Upload-Offset", offset.to_string()).with("Upload-Length", upload.length.to_string()))
}

/// Appends to an upload. What has come stays when the client disconnects.
async fn append(
    Path(id): Path<String>,
    Headers(headers): Headers,
    State(writer): State<Writer>,
    Streamed(body): Streamed,
) -> Result<Tus, Problem> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    check_version(text("tus-resumable"))?;
    if text("content-type") != Some("application/offset+octet-stream") {
        let detail = "Content-Type must be application/offset+octet-stream";
        return Err(Problem::new(Status::UNSUPPORTED_MEDIA_TYPE).detail(detail));
    }
    let offset = text("upload-offset").and_then(|offset| offset.parse::<u64>().ok());
    let offset = offset.ok_or_else(|| bad_request("Upload-Offset must be a number of bytes"))?;
    let wanted = text("upload-checksum").map(checksum_in).transpose().map_err(bad_request)?;
    let uploads = writer.uploads.clone();
    let open = on_thread(move || uploads.open(&id)).await.map_err(of_upload)?;
    if open.offset != offset {
        let detail = format!("Upload-Offset is {offset}; {} bytes have come", open.offset);
        return Err(Problem::new(Status::CONFLICT)
            .detail(detail)
            .header("Upload-Offset", open.offset.to_string()));
    }
    let appended = Appended { open, digest: wanted.is_some().then(Sha256::new) };
    let (appended, fault) = match receive(body, appended).await {
        Ok(appended) => (appended, None),
        Err((Some(appended), fault)) => (appended, Some(fault)),
        Err((None, fault)) => return Err(fault.problem()),
    };
    let is_wrong = wanted.is_some_and(|wanted| {
        fault.is_some() || appended.digest.is_none_or(|digest| *digest.finalize() != *wanted)
    });
    let mut open = appended.open;
    let offset = on_thread(move || {
        if is_wrong {
            open.truncate(offset)?;
        }
        let offset = open.offset;
        open.finish().map(|_| offset)
    });
    let offset = offset.await.map_err(|error| of_volume(&error))?;
    match fault {
        Some(fault) => Err(fault.problem()),
        None if is_wrong => {
            let status = Status::from_code(CHECKSUM_MISMATCH).unwrap_or(Status::BAD_REQUEST);
            Err(Problem::new(status).title("Checksum Mismatch").detail("the bytes were not taken"))
        }
        None => Ok(Tus::new(Status::NO_CONTENT).with("Upload-Offset", offset.to_string())),
    }
}

/// The SHA-256 in an `Upload-Checksum`.
fn checksum_in(field: &str) -> Result<Vec<u8>, String> {
    let encoded = field.strip_prefix("sha256 ").and_then(|encoded| STANDARD.decode(encoded.trim()).ok());
    encoded.ok_or_else(|| format!("Upload-Checksum is {field:?}; `sha256 BASE64` is supported"))
}

/// Ends an upload without a file.
fn remove(Path(id): Path<String>, State(writer): State<Writer>) -> Result<Tus, Problem> {
    writer.uploads.remove(&id).map_err(of_upload)?;
    Ok(Tus::new(Status::NO_CONTENT))
}

fn check_version(version: Option<&str>) -> Result<(), Problem> {
    match version {
        Some(tus::VERSION) => Ok(()),
        other => {
            let detail = format!("Tus-Resumable is {other:?}; {} is supported", tus::VERSION);
            Err(Problem::new(Status::PRECONDITION_FAILED).detail(detail).header("Tus-Version", tus::VERSION))
        }
    }
}

/// A response of tus: fields without a body.
struct Tus {
    status: Status,
    fields: Vec<(&'static str, String)>,
}

impl Tus {
    fn new(status: Status) -> Tus {
        Tus { status, fields: vec![("Tus-Resumable", tus::VERSION.to_owned())] }
    }

    fn with(mut self, name: &'static str, value: String) -> Tus {
        self.fields.push((name, value));
        self
    }

    fn capabilities(file_bytes_max: u64) -> Tus {
        Tus::new(Status::NO_CONTENT)
            .with("Tus-Version", tus::VERSION.to_owned())
            .with("Tus-Max-Size", file_bytes_max.to_string())
            .with("Tus-Extension", "creation,termination,checksum".to_owned())
            .with("Tus-Checksum-Algorithm", "sha256".to_owned())
    }
}

impl Respond for Tus {
    fn respond(self, response: &mut Response) {
        response.set_status(self.status);
        for (name, value) in &self.fields {
            response.header(name, value.as_str());
        }
    }
}

/// A file that is received whole.
struct Digested {
    part: Part,
    digest: Sha256,
}

/// A piece of an upload that is received.
struct Appended {
    open: OpenUpload,
    digest: Option<Sha256>,
}

/// Where a body goes.
trait Receiver: Send + 'static {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Bytes that may still come.
    fn room(&self) -> u64;
}

impl Receiver for Digested {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.digest.update(bytes);
        self.part.write_all(bytes)
    }

    fn room(&self) -> u64 {
        u64::MAX
    }
}

impl Receiver for Appended {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Some(digest) = &mut self.digest {
            digest.update(bytes);
        }
        self.open.append(bytes)
    }

    fn room(&self) -> u64 {
        self.open.upload.length.saturating_sub(self.open.offset)
    }
}

/// Why a body was not received whole.
enum ReceiveFault {
    Body(String, Status),
    Volume(io::Error),
    TooLong,
}

impl ReceiveFault {
    fn problem(self) -> Problem {
        match self {
            ReceiveFault::Body(why, status) => Problem::new(status).detail(why),
            ReceiveFault::Volume(error) => of_volume(&error),
            ReceiveFault::TooLong => {
                Problem::new(Status::CONTENT_TOO_LARGE).detail("more bytes came than Upload-Length says")
            }
        }
    }
}

impl From<BodyFault> for ReceiveFault {
    fn from(fault: BodyFault) -> Self {
        let status = match fault {
            BodyFault::TooLarge => Status::CONTENT_TOO_LARGE,
            BodyFault::TooSlow => Status::REQUEST_TIMEOUT,
            BodyFault::Starved | BodyFault::Stopped => Status::SERVICE_UNAVAILABLE,
            _ => Status::BAD_REQUEST,
        };
        ReceiveFault::Body(fault.to_string(), status)
    }
}

/// Passes a body to a receiver, in large pieces, on another thread. While a piece is written, the client waits. If the body ends early,
/// what has come is written too, and the receiver is returned with the fault.
async fn receive<R: Receiver>(mut body: BodyStream, receiver: R) -> Result<R, (Option<R>, ReceiveFault)> {
    let (mut receiver, mut pieces, mut bytes) = (receiver, Vec::new(), 0);
    loop {
        let frame = body.frame().await;
        let (is_end, fault) = match frame {
            None => (true, None),
            Some(Err(fault)) => (true, Some(ReceiveFault::from(fault))),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    bytes += data.len();
                    pieces.push(data);
                }
                (false, None)
            }
        };
        if bytes as u64 > receiver.room() {
            return Err((Some(receiver), ReceiveFault::TooLong));
        }
        if bytes >= WRITE_BYTES || (is_end && bytes > 0) {
            let write = write(receiver, std::mem::take(&mut pieces));
            bytes = 0;
            match on_thread(write).await {
                Ok(written) => receiver = written,
                Err((back, error)) => return Err((Some(back), ReceiveFault::Volume(error))),
            }
        }
        match fault {
            Some(fault) => return Err((Some(receiver), fault)),
            None if is_end => return Ok(receiver),
            None => {}
        }
    }
}

fn write<R: Receiver>(
    mut receiver: R,
    pieces: Vec<Bytes>,
) -> impl FnOnce() -> Result<R, (R, io::Error)> + Send {
    move || match pieces.iter().try_for_each(|piece| receiver.write(piece)) {
        Ok(()) => Ok(receiver),
        Err(error) => Err((receiver, error)),
    }
}

/// Calls a function that may wait for the volume on another thread.
async fn on_thread<T: Send + 'static>(function: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(function).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn bad_request(detail: impl fmt::Display) -> Problem {
    Problem::new(Status::BAD_REQUEST).detail(detail.to_string())
}

fn of_upload(fault: UploadFault) -> Problem {
    match fault {
        UploadFault::Unknown => {
            Problem::new(Status::NOT_FOUND).detail("there is no such upload, or it is complete")
        }
        UploadFault::Busy => Problem::new(Status::from_code(LOCKED).unwrap_or(Status::CONFLICT))
            .detail("another request appends to this upload"),
        UploadFault::Volume(error) => of_volume(&error),
    }
}

fn of_volume(error: &io::Error) -> Problem {
    let status = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            Status::INSUFFICIENT_STORAGE
        }
        _ => Status::SERVICE_UNAVAILABLE,
    };
    Problem::new(status).detail(format!("the volume: {error}")).header("Retry-After", "5")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_read_from_fields() {
        let encoded = STANDARD.encode([7; 32]);
        assert_eq!(digest_in(&format!("sha-512=:AA==:, sha-256=:{encoded}:")).unwrap(), [7; 32]);
        for bad in ["", "sha-256", "sha-256=AA==", "sha-256=:AA==:", "md5=:AA==:"] {
            assert!(digest_in(bad).is_err(), "{bad}");
        }
        assert!(checksum_in("md5 AA==").is_err());
    }

    #[test]
    fn a_full_disk_is_insufficient_storage() {
        assert_eq!(of_volume(&ErrorKind::StorageFull.into()).status(), Status::INSUFFICIENT_STORAGE);
        assert_eq!(
            of_volume(&ErrorKind::StaleNetworkFileHandle.into()).status(),
            Status::SERVICE_UNAVAILABLE
        );
    }
}
