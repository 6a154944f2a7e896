//! Generic families: their number has to be looked up first.

use super::{
    Attributes, DUMP, Fault, List, Message, Protocol, REQUEST, Request, attributes, cut, find, number,
};
use crate::host::Host;

/// A family of this kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Family {
    kind: u16,
    version: u8,
}

/// A command and its version, padded.
const HEAD_BYTES: usize = 4;

const CONTROLLER: Family = Family { kind: 16, version: 2 };
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

impl Family {
    /// The family with this name; `None` if this kernel has none.
    pub(super) fn find(host: &Host, name: &str) -> Result<Option<Family>, Fault> {
        let named = Attributes::new().with_text(FAMILY_NAME, name);
        match CONTROLLER.ask(host, GET_FAMILY, REQUEST, &named) {
            Err(Fault::Refused(rustix::io::Errno::NOENT)) => Ok(None),
            Err(fault) if fault.is_absent() => Ok(None),
            Err(fault) => Err(fault),
            Ok(messages) => {
                let found = replied(messages.first().ok_or_else(cut)?)?;
                let kind = find(&found, FAMILY_ID).and_then(number).ok_or_else(cut)?;
                Ok(Some(Family { kind: u16::try_from(kind).map_err(|_| cut())?, version: 1 }))
            }
        }
    }

    /// Sends a command of this family.
    pub(super) fn ask(
        self,
        host: &Host,
        command: u8,
        flags: u16,
        attributes: &Attributes,
    ) -> Result<Vec<Message>, Fault> {
        let head = [command, self.version, 0, 0];
        host.ask(Protocol::Generic, &Request::new(self.kind, REQUEST | flags, &head, attributes))
    }

    /// Lists the results of a command.
    pub(super) fn list(
        self,
        host: &Host,
        command: u8,
        attributes: &Attributes,
    ) -> Result<Vec<Message>, Fault> {
        self.ask(host, command, DUMP, attributes)
    }
}

/// The attributes of a reply.
pub(super) fn replied(message: &Message) -> Result<List<'_>, Fault> {
    attributes(message.body.get(HEAD_BYTES..).ok_or_else(cut)?)
}
