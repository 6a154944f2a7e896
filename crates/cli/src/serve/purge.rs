//! `flatout purge`: removes stored responses of a running server.

use clap::{Arg, ArgAction, ArgGroup, ArgMatches, ValueHint};
use flatout_admin as admin;
use flatout_cache::{Purge, PurgeScope};

use super::admin_client;
use crate::command::Command;
use crate::{Failure, print};

pub(crate) const COMMAND: Command = Command {
    name: "purge",
    about: "Remove stored responses of a running server",
    more: "The purge is sent to the server's admin listener. When the command returns, no worker serves the purged \
           responses. Requests for them that are in flight are completed, and their responses are not stored.\n\
           Exit status: 0 purged, also if nothing was stored; 1 not purged.",
    examples: &[
        ("flatout purge -c site.kdl https://example.org/a?b", "all variants of one URL"),
        (
            "flatout purge --admin unix:/run/flatout.sock --prefix https://example.org/img/",
            "all below a path",
        ),
        ("flatout purge -c site.kdl --host example.org", "all of one host"),
        ("flatout purge -c site.kdl --tag product-7 --soft", "validate before the next use"),
    ],
    arguments: |command| {
        let text = |name: &'static str, value: &'static str, help: &'static str| {
            Arg::new(name).long(name).value_name(value).help(help)
        };
        let switch = |name: &'static str, help: &'static str| {
            Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
        };
        let config = text("config", "FILE", "The site file, which names the admin listener").short('c');
        command
            .arg(
                Arg::new("url")
                    .value_name("URL")
                    .help("The URL, as clients request it")
                    .value_hint(ValueHint::Url),
            )
            .arg(text("prefix", "URL", "URLs that begin with this one"))
            .arg(text("tag", "TAG", "Responses with this tag in Cache-Tag or Surrogate-Key"))
            .arg(text(
                "host",
                "NAME",
                "Everything of this host, for https and http; see --prefix for one of them",
            ))
            .arg(switch("all", "Everything"))
            .group(ArgGroup::new("what").args(["url", "prefix", "tag", "host", "all"]).required(true))
            .arg(switch("soft", "Mark the responses stale; they are validated before the next use"))
            .arg(config.value_hint(ValueHint::FilePath).required_unless_present("admin"))
            .arg(text("admin", "ADDR", "The admin listener of the server"))
    },
    run,
};

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let text = |name| matches.get_one::<String>(name).cloned();
    let scopes = match (text("url"), text("prefix"), text("tag"), text("host")) {
        (Some(url), ..) => vec![PurgeScope::Url(url)],
        (_, Some(url), ..) => vec![PurgeScope::Prefix(url)],
        (_, _, Some(tag), _) => vec![PurgeScope::Tag(tag)],
        (_, _, _, Some(host)) => of_host(&host)?,
        _ => vec![PurgeScope::All],
    };
    send(matches, scopes, matches.get_flag("soft"))
}

/// Sends purges to the server of a command.
///
/// # Errors
/// A URL that is none: nothing was sent; or the server refuses.
pub(super) fn send(matches: &ArgMatches, scopes: Vec<PurgeScope>, is_soft: bool) -> Result<(), Failure> {
    let purges: Vec<Purge> = scopes.into_iter().map(|scope| Purge { scope, is_soft }).collect();
    for purge in &purges {
        Purge::from_text(&purge.to_text()).map_err(|_| Failure::Usage(refused(&purge.scope)))?;
    }
    let address = admin_client::address(matches)?;
    for purge in purges.iter().map(Purge::to_text) {
        let message = admin_client::message(&address, admin::ask(&address, "/purge", purge.as_bytes()))?;
        print(&format!("{message}\n"))?;
    }
    Ok(())
}

/// Why a purge is none, in the words of the command.
fn refused(scope: &PurgeScope) -> String {
    match scope {
        PurgeScope::Url(url) | PurgeScope::Prefix(url) => {
            format!("got `{url}`, need a whole URL such as https://example.org/a")
        }
        PurgeScope::Tag(tag) => format!("--tag: got `{tag}`, need a tag"),
        PurgeScope::All => "the purge is malformed".to_owned(),
    }
}

/// All URLs of a host, of both schemes.
fn of_host(host: &str) -> Result<Vec<PurgeScope>, Failure> {
    if host.is_empty() || host.contains(['/', ' ', '*']) {
        return Err(Failure::Usage(format!("--host: got `{host}`, need a host name such as example.org")));
    }
    let host = host.to_ascii_lowercase();
    Ok(["https", "http"].map(|scheme| PurgeScope::Prefix(format!("{scheme}://{host}/"))).into())
}
