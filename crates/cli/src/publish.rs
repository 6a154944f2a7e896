//! `flatout publish`: publishes messages to a channel of a running server.

use std::io::BufRead;

use clap::{Arg, ArgAction, ArgMatches};
use flatout_push::Client;

use crate::command::Command;
use crate::{Failure, print};

pub(crate) const COMMAND: Command = Command {
    name: "publish",
    about: "Publish messages to a channel of a running server",
    more: "Without MESSAGE, each line of standard input is one. The id of each published message is printed.\n\
           Exit status: 0 all were published, 1 a message was not, 2 wrong usage.",
    examples: &[
        (
            "flatout publish http://127.0.0.1:8080/live/NBA.1 --token SECRET '12:10'",
            "one message to the channel NBA.1",
        ),
        (
            "flatout publish http://127.0.0.1:8080/live/NBA.1 --host sport.example --token SECRET '12:10'",
            "the channel NBA.1 of the site sport.example",
        ),
        (
            "tail -f quotes.jsonl | flatout publish http://127.0.0.1:8080/live/quotes --token SECRET --json",
            "a message for each line",
        ),
    ],
    arguments: |command| {
        let url = Arg::new("url")
            .value_name("URL")
            .required(true)
            .help("The channel, such as http://HOST:PORT/live/CHANNEL");
        let message =
            Arg::new("message").value_name("MESSAGE").help("The message [default: lines of standard input]");
        let option = |name: &'static str, value: &'static str, help: &'static str| {
            Arg::new(name).long(name).value_name(value).help(help)
        };
        command
            .arg(url)
            .arg(message)
            .arg(option("host", "NAME", "Publish to the site of this name, at the server of the URL"))
            .arg(option("token", "TOKEN", "The server's push-token [default: $FLATOUT_PUSH_TOKEN]"))
            .arg(option("event", "NAME", "The event type"))
            .arg(option("key", "KEY", "The key of the value, in a channel with push-kind latest"))
            .arg(
                Arg::new("json")
                    .long("json")
                    .action(ArgAction::SetTrue)
                    .help("Messages are JSON, and are embedded as JSON"),
            )
    },
    run,
};

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let text = |name: &str| matches.get_one::<String>(name).map_or("", String::as_str);
    // Other users of the machine can see the command line.
    let token = matches.get_one::<String>("token").cloned();
    let token = token.or_else(|| std::env::var("FLATOUT_PUSH_TOKEN").ok()).unwrap_or_default();
    let url = text("url");
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::InvalidInput => Failure::Usage(format!("`{url}`: {error}")),
        _ => Failure::Run(format!("{url}: {error}")),
    };
    let host = Some(text("host")).filter(|host| !host.is_empty());
    let mut client = Client::connect(url, host, &token).map_err(failed)?;
    let content_type =
        if matches.get_flag("json") { "application/json" } else { "text/plain; charset=utf-8" };
    let query: Vec<String> = ["event", "key"]
        .into_iter()
        .filter(|name| !text(name).is_empty())
        .map(|name| format!("{name}={}", escaped(text(name))))
        .collect();
    let query = query.join("&");
    let mut publish = |message: &str| match client.publish(message.as_bytes(), content_type, &query) {
        Ok(Ok(said)) => print(&format!("{said}\n")),
        Ok(Err(why)) => Err(Failure::Run(format!("not published: {why}"))),
        Err(error) => Err(failed(error)),
    };
    if let Some(message) = matches.get_one::<String>("message") {
        return publish(message);
    }
    for line in std::io::stdin().lock().lines() {
        publish(&line.map_err(|error| Failure::Run(format!("standard input: {error}")))?)?;
    }
    Ok(())
}

/// Escapes a query value.
fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            byte if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => out.push(byte as char),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
        out
    })
}
