//! `flatout prerender`: what the renderer of a running server does, and pages that it is to render before they are requested.

use std::path::Path;

use clap::{Arg, ArgMatches, ValueHint};
use flatout_admin as admin;
use flatout_engine::Address;

use super::source::checked;
use crate::command::Command;
use crate::{Failure, print};

pub(crate) const COMMAND: Command = Command {
    name: "prerender",
    about: "Show what the renderer of a running server does, or have it render pages",
    more: "The command is sent to the server's admin listener. A warm-up goes on in the background, one page after the other, and \
           pages that are in the cache already are not rendered again. Remove rendered pages with flatout purge.\n\
           Exit status: 0 done; 1 the server refuses, or has no renderer.",
    examples: &[
        ("flatout prerender status -c site.kdl", "renders, pages, memory, warm-up"),
        ("flatout prerender warm -c site.kdl https://example.org/sitemap.xml", "all pages of a sitemap"),
        ("flatout prerender warm -c site.kdl https://example.org/ https://example.org/new", "two pages"),
    ],
    arguments: |command| {
        let text = |name: &'static str, value: &'static str, help: &'static str| {
            Arg::new(name).long(name).value_name(value).help(help)
        };
        let config = text("config", "FILE", "The site file, which names the admin listener").short('c');
        command
            .arg(
                Arg::new("action")
                    .value_name("ACTION")
                    .help("status, or warm: render pages before they are requested")
                    .value_parser(["status", "warm"])
                    .required(true),
            )
            .arg(
                Arg::new("url")
                    .value_name("URL")
                    .help("For warm: pages, and sitemaps, whose paths end with .xml")
                    .num_args(0..)
                    .value_hint(ValueHint::Url),
            )
            .arg(text("agent", "TEXT", "For warm: the User-Agent of the crawler [default: Googlebot's]"))
            .arg(config.value_hint(ValueHint::FilePath).required_unless_present("admin"))
            .arg(text("admin", "ADDR", "The admin listener of the server"))
    },
    run,
};

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let text = |name| matches.get_one::<String>(name).cloned();
    let urls: Vec<String> = matches.get_many::<String>("url").into_iter().flatten().cloned().collect();
    let action = text("action").unwrap_or_default();
    match (action.as_str(), urls.is_empty()) {
        ("warm", true) => {
            return Err(Failure::Usage("warm: need the URL of a page or of a sitemap".to_owned()));
        }
        ("status", false) => return Err(Failure::Usage("status: it takes no URL".to_owned())),
        _ => {}
    }
    let given = text("admin").map(|text| text.parse::<Address>()).transpose();
    let mut address = given.map_err(|message| Failure::Usage(format!("--admin: {message}")))?;
    if let (None, Some(file)) = (&address, text("config")) {
        let checked = checked(Path::new(&file)).map_err(Failure::Usage)?;
        address = checked.plan().admin.first().cloned();
    }
    let Some(address) = address else {
        return Err(Failure::Usage(
            "the site file has no admin listener; add one, or give --admin".to_owned(),
        ));
    };
    let body = format!("{}\n{}\n", text("agent").unwrap_or_default(), urls.join("\n"));
    let path = if action == "warm" { "/prerender/warm" } else { "/prerender/status" };
    match admin::ask(&address, path, body.as_bytes()) {
        Ok(Ok(message)) => Ok(print(&format!("{message}\n"))?),
        Ok(Err(why)) => Err(Failure::Run(why)),
        Err(error) => Err(Failure::Run(format!("{address}: {error}"))),
    }
}
