//! Commands to the admin listener of a running server: which one it is, and what it has responded.

use std::io;
use std::path::Path;

use clap::ArgMatches;
use flatout_engine::Address;

use super::source::checked;
use crate::Failure;

/// An admin listener, also as the URL that a server reports when it starts.
pub(crate) fn parsed(text: &str) -> Result<Address, String> {
    text.strip_prefix("http://").map_or(text, |rest| rest.trim_end_matches('/')).parse()
}

/// The listener that `--admin` names.
pub(super) fn named(matches: &ArgMatches) -> Result<Option<Address>, Failure> {
    let named = matches.get_one::<String>("admin").map(|text| parsed(text));
    named.transpose().map_err(|message| Failure::Usage(format!("--admin: {message}")))
}

/// The listener that `--admin` names, or else the first one of the site file that `--config` names.
pub(super) fn address(matches: &ArgMatches) -> Result<Address, Failure> {
    let mut address = named(matches)?;
    if let (None, Some(file)) = (&address, matches.get_one::<String>("config")) {
        let checked = checked(Path::new(file)).map_err(Failure::Usage)?;
        address = checked.plan().admin.first().cloned();
    }
    let missing = "the site file has no admin listener; add one, or give --admin";
    address.ok_or_else(|| Failure::Usage(missing.to_owned()))
}

/// The message of the server at this address, or why it has not done what it was sent.
pub(super) fn message(
    address: &Address,
    response: io::Result<Result<String, String>>,
) -> Result<String, Failure> {
    match response {
        Ok(Ok(message)) => Ok(message),
        Ok(Err(why)) => Err(Failure::Run(why)),
        Err(error) => Err(Failure::Run(format!("{address}: {error}"))),
    }
}
