//! `flatout report`: draws a climb again from its JSON.

use flatout_report::climb::{from_json, html, text};

use crate::climb::{read, read_old, write};
use crate::setting::{Group, Parsed, Setting, help, parse};
use crate::{Command, Failure, print};

pub(crate) const COMMAND: Command = Command {
    name: "report",
    about: "a climb again, from its --json: flatout report climb.json --out page.html",
    run,
};

const USAGE: &str = "flatout report CLIMB.json [--out FILE.html] [--compare OLD.json]

Prints what the climb printed, and writes the page that its --report wrote.
exit status: 0 drawn, 1 the page cannot be written, 2 wrong usage, or the file is no climb";

/// What the flags fill.
#[derive(Default)]
struct Options {
    out: Option<String>,
    compare: Option<String>,
}

const GROUPS: &[Group<Options>] = &[("result", RESULT)];

const RESULT: &[Setting<Options>] = &[
    Setting {
        name: "out",
        value: "FILE",
        default: "",
        help: "write one HTML page that needs no network",
        set: |options, text| {
            options.out = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "compare",
        value: "FILE",
        default: "",
        help: "an earlier --json: tells whether the machine or version got slower",
        set: |options, text| {
            options.compare = Some(text.to_owned());
            Ok(())
        },
    },
];

fn run(parser: lexopt::Parser) -> Result<(), Failure> {
    let mut options = Options::default();
    let free = match parse(parser, GROUPS, &[], &mut options)? {
        Parsed::Help => return print(&help(USAGE, GROUPS, &[])),
        Parsed::Run(free) => free,
    };
    let [path] = &free[..] else {
        let got = free.len();
        return Err(Failure::Usage(format!(
            "got {got} files, need one: what `flatout climb --json FILE` wrote"
        )));
    };
    let mut climb = read(path, from_json).map_err(Failure::Usage)?;
    climb.old = options.compare.as_deref().map(read_old).transpose()?;
    write(options.out.as_deref(), || html::html(&climb))?;
    print(&text::text(&climb))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_told() {
        for (arguments, expected) in [
            (&[][..], "got 0 files, need one"),
            (&["a.json", "b.json"], "got 2 files"),
            (&["/no/such.json"], "cannot read `/no/such.json`: No such file"),
            (&["/proc/self/comm"], "`/proc/self/comm`: no climb: expected"),
            (&["a.json", "--compar", "x"], "did you mean --compare?"),
        ] {
            let parser =
                lexopt::Parser::from_iter(std::iter::once("flatout").chain(arguments.iter().copied()));
            let Err(Failure::Usage(message)) = run(parser) else { panic!("{arguments:?} is no mistake") };
            assert!(message.contains(expected), "{message}");
        }
    }
}
