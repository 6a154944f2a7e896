//! A message, or several, published over HTTP. The server has it at some moment between the request and its response.

use std::path::Path;

use serde_json::{Value, json};

use crate::client::connect;
use crate::message::{Decoder, Framing, Head, Start, chunked};
use crate::model::push::{CHANNELS_PATH, channel_name, key_name};
use crate::socket::{Received, Sent, Socket};
use crate::token;
use crate::trace::{Actor, Event};
use crate::world::Shared;

/// A connection of a publisher, with the request that is on its way.
pub(crate) struct Publication {
    socket: Socket,
    opened_ns: u64,
    output: Vec<u8>,
    input: Vec<u8>,
    /// The messages in the request. With a wrong token, none is published.
    texts: Vec<String>,
    has_token: bool,
    is_list: bool,
    response: Option<(Head, Decoder)>,
    /// It has no request on its way.
    is_idle: bool,
}

/// What became of a publication.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Nothing,
    Something,
    /// It was published, under these ids.
    Published(Vec<String>),
    /// It was not published.
    Refused,
    /// Nobody knows.
    Unknown,
}

impl Publication {
    pub(crate) fn connect(
        folder: &Path,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
    ) -> Result<Publication, String> {
        let socket = connect(folder, false, random, shared, Actor::Publisher)?;
        Ok(Publication {
            socket,
            opened_ns: shared.now_ns,
            output: Vec::new(),
            input: Vec::new(),
            texts: Vec::new(),
            has_token: true,
            is_list: false,
            response: None,
            is_idle: true,
        })
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// The messages of its last request.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &String> {
        self.texts.iter()
    }

    /// Whether that had the right token.
    pub(crate) fn has_token(&self) -> bool {
        self.has_token
    }

    /// Begins to publish these messages, each to its channel. `first`: they are latest values, and this is the number of the first.
    pub(crate) fn begin(
        &mut self,
        messages: &[(usize, String)],
        first: Option<usize>,
        has_token: bool,
        random: &mut fastrand::Rng,
    ) {
        let names: Vec<String> = messages.iter().map(|(channel, _)| channel_name(*channel)).collect();
        self.is_list = messages.len() > 1 || random.u8(..4) == 0;
        let (path, body) = match (messages, self.is_list) {
            ([(_, text)], false) => {
                let query = first.map(|number| format!("?key={}", key_name(number))).unwrap_or_default();
                (format!("{CHANNELS_PATH}/{}{query}", names[0]), text.clone())
            }
            _ => {
                let all = names.iter().zip(messages).enumerate();
                let entries = all.map(|(at, (channel, (_, data)))| match first {
                    None => json!({ "channel": channel, "data": data }),
                    Some(number) => {
                        json!({ "channel": channel, "data": data, "key": key_name(number + at) })
                    }
                });
                (CHANNELS_PATH.to_owned(), Value::Array(entries.collect()).to_string())
            }
        };
        let token = match (has_token, random.u8(..2)) {
            (true, _) => token::PUBLISHER,
            (false, 0) => "publisher-tokem",
            (false, _) => "publisher",
        };
        let is_chunked = random.bool();
        let framing = match is_chunked {
            true => "Transfer-Encoding: chunked".to_owned(),
            false => format!("Content-Length: {}", body.len()),
        };
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: a.test\r\nAuthorization: Bearer {token}\r\n{framing}\r\n\r\n"
        );
        self.output = head.into_bytes();
        self.output.extend(if is_chunked { chunked(random, body.as_bytes()) } else { body.into_bytes() });
        self.texts = messages.iter().map(|(_, text)| text.clone()).collect();
        (self.has_token, self.is_idle) = (has_token, false);
    }

    /// Sends or receives something.
    pub(crate) fn step(
        &mut self,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
    ) -> Result<Progress, String> {
        if !self.output.is_empty() {
            let piece = self.socket.draw_piece(random, self.output.len());
            match self.socket.send(&self.output[..piece]) {
                Sent::Bytes(bytes) => {
                    self.output.drain(..bytes);
                    shared.event(Actor::Publisher, Event::Sent(bytes));
                    return Ok(Progress::Something);
                }
                Sent::Full | Sent::Broken => {}
            }
        }
        let most = self.socket.draw_room(random);
        match self.socket.receive(&mut self.input, most) {
            Received::Nothing => return Ok(Progress::Nothing),
            Received::Bytes(bytes) => shared.event(Actor::Publisher, Event::Received(bytes)),
            Received::End | Received::Reset => {
                shared.event(Actor::Publisher, Event::Closed);
                // With TLS the last bytes come together with the end.
                let progress = self.take(shared)?;
                return Ok(if progress == Progress::Something { Progress::Unknown } else { progress });
            }
        }
        self.take(shared)
    }

    /// Takes the response from what has come.
    fn take(&mut self, shared: &Shared<'_>) -> Result<Progress, String> {
        if self.response.is_none() {
            let Some((head, length)) = Head::response(&self.input)? else { return Ok(Progress::Something) };
            self.input.drain(..length);
            let decoder = Decoder::new(head.framing(Framing::Close)?);
            self.response = Some((head, decoder));
        }
        let Some((_, decoder)) = &mut self.response else { return Ok(Progress::Something) };
        decoder.take(&mut self.input)?;
        if !decoder.is_complete {
            return Ok(Progress::Something);
        }
        let Some((head, decoder)) = self.response.take() else { return Ok(Progress::Something) };
        let Start::Response { status } = head.start else { return Err("no response".to_owned()) };
        self.is_idle = true;
        let may_be_refused = shared.may_be_of_former(self.opened_ns)
            || shared.scene.upgrades > 0
            || shared.scene.bodies_memory_max.is_some();
        match status {
            200 if self.has_token => self.ids(&decoder.body).map(Progress::Published),
            401 if !self.has_token => Ok(Progress::Refused),
            503 if may_be_refused => Ok(Progress::Unknown),
            _ => Err(format!(
                "a publisher got {status}: {}",
                String::from_utf8_lossy(&decoder.body[..decoder.body.len().min(80)]).trim()
            )),
        }
    }

    fn ids(&self, body: &[u8]) -> Result<Vec<String>, String> {
        let value: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let ids: Option<Vec<String>> = match self.is_list {
            true => value["ids"].as_array().and_then(|ids| ids.iter().map(text).collect()),
            false => text(&value["id"]).map(|id| vec![id]),
        };
        match ids {
            Some(ids) if ids.len() == self.texts.len() => Ok(ids),
            _ => Err(format!("a publisher of {} messages got {value}", self.texts.len())),
        }
    }
}
