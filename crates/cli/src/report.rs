//! `flatout report`: draws a climb again from its JSON.

use clap::{Arg, ArgMatches, ValueHint};
use flatout_report::climb::{from_json, html, svg, text};

use crate::climb::{read, read_old, write};
use crate::command::{Command, with};
use crate::setting::{Group, Setting, fill};
use crate::shared::{Showing, compare, report};
use crate::{Failure, print};

pub(crate) const COMMAND: Command = Command {
    name: "report",
    about: "Show the result of an earlier climb",
    more: "Prints what the climb printed, and writes the page that its --report wrote.\nExit status: 0 shown, 1 a file \
           cannot be written, 2 wrong usage, or the file is not a climb.",
    examples: &[
        ("flatout report climb.json --report climb.html", "print a climb and write its page"),
        ("flatout report new.json --compare old.json", "did the machine or the server get slower?"),
    ],
    arguments: |command| {
        let file = Arg::new(FILE).value_name("FILE").required(true).value_hint(ValueHint::FilePath);
        with(command, file.help("What `flatout climb --json FILE` wrote"), GROUPS, &[])
    },
    run,
};

const FILE: &str = "file";

/// The options.
#[derive(Default)]
struct ReportOptions {
    showing: Showing,
    svg: Option<String>,
}

impl AsMut<Showing> for ReportOptions {
    fn as_mut(&mut self) -> &mut Showing {
        &mut self.showing
    }
}

const GROUPS: &[Group<ReportOptions>] = &[("Output", RESULT)];

const RESULT: &[Setting<ReportOptions>] = &[
    report(),
    Setting {
        name: "svg",
        value: "FILE",
        default: "",
        help: "write the waterfall as an SVG image, for a README or a slide",
        set: |options, text| {
            options.svg = Some(text.to_owned());
            Ok(())
        },
    },
    compare(),
];

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let mut options = ReportOptions::default();
    fill(matches, GROUPS, &mut options)?;
    let path = matches.get_one::<String>(FILE).map_or("", String::as_str);
    let mut climb = read(path, from_json).map_err(Failure::Usage)?;
    climb.old = options.showing.compare.as_deref().map(read_old).transpose()?;
    write(options.showing.report.as_deref(), || html::html(&climb))?;
    write(options.svg.as_deref(), || svg(&climb))?;
    print(&text::text(&climb))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_reported() {
        for (arguments, expected) in [
            (&[][..], "required arguments were not provided"),
            (&["a.json", "b.json"], "unexpected argument 'b.json'"),
            (&["/no/such.json"], "cannot read `/no/such.json`: No such file"),
            (&["/proc/self/comm"], "`/proc/self/comm`: not a climb: expected"),
            (&["a.json", "--compar", "x"], "similar argument exists: '--compare'"),
        ] {
            let matches = COMMAND.parse(arguments.iter().map(ToString::to_string));
            let Err(failure) = matches.and_then(|matches| run(&matches)) else {
                panic!("{arguments:?} is no mistake")
            };
            let message = failure.to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
