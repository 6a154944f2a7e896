//! `flatout prerender`: what the renderer of a running server does, pages that it is to render before they are requested or again, and a
//! preview.

use std::time::Duration;

use clap::{Arg, ArgMatches, ValueHint};
use flatout_admin as admin;
use flatout_cache::PurgeScope;
use flatout_engine::Address;

use super::{admin_client, purge};
use crate::command::Command;
use crate::{Failure, print};

/// How long a preview may take: the queue, two minutes for a page, and its links.
const PREVIEW_TIME_MAX: Duration = Duration::from_secs(360);

/// The file of a preview.
const PREVIEW_FILE: &str = "preview.html";

pub(crate) const COMMAND: Command = Command {
    name: "prerender",
    about: "Show what the renderer of a running server does, preview a page, or have it render pages",
    more: "The command is sent to the server's admin listener. A warm-up goes on in the background, one page after the other, and \
           pages that are in the cache already are not rendered again, unless they are purged before.\n\
           A preview is one page of HTML: a picture of the page, the HTML that crawlers get, and what they would miss, such as a title, \
           a description, og tags, a canonical URL, broken links and JavaScript errors. It neither uses nor changes the cache.\n\
           Exit status: 0 done; 1 the server refuses, or has no renderer.",
    examples: &[
        ("flatout prerender status -c site.kdl", "renders, pages, memory, warm-up"),
        ("flatout prerender preview -c site.kdl /articles/1", "writes preview.html, to open in a browser"),
        ("flatout prerender warm -c site.kdl https://example.org/sitemap.xml", "all pages of a sitemap"),
        ("flatout prerender warm -c site.kdl https://example.org/ https://example.org/new", "two pages"),
        (
            "flatout prerender purge -c site.kdl https://example.org/new 'https://example.org/articles/*'",
            "render them anew",
        ),
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
                    .help(
                        "status, preview: what crawlers get of a page, warm: render pages before they are requested, or purge: remove \
                         pages from the cache",
                    )
                    .value_parser(["status", "preview", "warm", "purge"])
                    .required(true),
            )
            .arg(
                Arg::new("url")
                    .value_name("URL")
                    .help("For preview: a page, as a URL or as a path of the first site with prerender. For warm: pages, and sitemaps, whose paths end with .xml. For purge: pages; with * at the end, all that begin so")
                    .num_args(0..)
                    .value_hint(ValueHint::Url),
            )
            .arg(text("agent", "TEXT", "For warm: the User-Agent of the crawler [default: Googlebot's]"))
            .arg(
                text("output", "FILE", "For preview: the file to write, or - for standard output [default: preview.html]")
                    .short('o')
                    .value_hint(ValueHint::FilePath),
            )
            .arg(config.value_hint(ValueHint::FilePath).required_unless_present("admin"))
            .arg(text("admin", "ADDR", "The admin listener of the server"))
    },
    run,
};

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let text = |name| matches.get_one::<String>(name).cloned();
    let urls: Vec<String> = matches.get_many::<String>("url").into_iter().flatten().cloned().collect();
    let action = text("action").unwrap_or_default();
    match (action.as_str(), urls.len()) {
        ("warm", 0) => {
            return Err(Failure::Usage("warm: need the URL of a page or of a sitemap".to_owned()));
        }
        ("purge", 0) => {
            let message =
                "purge: need the URL of a page, such as https://example.org/new, or 'https://example.org/*'";
            return Err(Failure::Usage(message.to_owned()));
        }
        ("purge", _) => return purge::send(matches, urls.iter().map(|url| scope(url)).collect(), false),
        ("preview", 1) => {}
        ("preview", count) => {
            return Err(Failure::Usage(format!(
                "preview: got {count} pages, need one, such as https://example.org/ or /articles/1"
            )));
        }
        ("status", 1..) => return Err(Failure::Usage("status: it takes no URL".to_owned())),
        _ => {}
    }
    let address = admin_client::address(matches)?;
    if let ("preview", Some(url)) = (action.as_str(), urls.first()) {
        return preview(&address, url, &text("output").unwrap_or_else(|| PREVIEW_FILE.to_owned()));
    }
    let body = format!("{}\n{}\n", text("agent").unwrap_or_default(), urls.join("\n"));
    let path = if action == "warm" { "/prerender/warm" } else { "/prerender/status" };
    let message = admin_client::message(&address, admin::ask(&address, path, body.as_bytes()))?;
    print(&format!("{message}\n"))
}

/// What a URL of `purge` stands for.
fn scope(url: &str) -> PurgeScope {
    url.strip_suffix('*')
        .map_or_else(|| PurgeScope::Url(url.to_owned()), |start| PurgeScope::Prefix(start.to_owned()))
}

/// Writes the preview of a page to a file.
fn preview(address: &Address, url: &str, file: &str) -> Result<(), Failure> {
    let page = admin::ask_within(address, "/prerender/preview", url.as_bytes(), PREVIEW_TIME_MAX);
    let page = admin_client::message(address, page)? + "\n";
    if file == "-" {
        return print(&page);
    }
    std::fs::write(file, page).map_err(|error| Failure::Run(format!("{file}: {error}")))?;
    print(&format!("wrote {file}; open it in a browser\n"))
}
