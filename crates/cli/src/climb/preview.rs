//! Lists what a climb will try, before it starts.

use std::fmt::Write;

use flatout_climb::{Attempt, Plan, Rung, Tuned};
use flatout_tune::find;

/// All rungs, the drawback of each while it is tried, and the total time.
pub(super) fn of(plan: &Plan, tunings: &Tuned<'_>) -> String {
    let count = plan.rungs.iter().filter(|rung| !matches!(rung.change, Attempt::Skip(_))).count();
    let mut out = format!(
        "{count} {} will be tried, each on your load and undone, in at most {} min {:02} s:",
        if count == 1 { "change" } else { "changes" },
        plan.budget.as_secs() / 60,
        plan.budget.as_secs() % 60
    );
    let columns = plan.rungs.iter().map(|rung| rung.name.chars().count()).max().unwrap_or(0);
    for rung in &plan.rungs {
        let _ = write!(out, "\n  {:<columns$}  {}", rung.name, description(rung));
    }
    if let Some(config) = &plan.config {
        let paths: Vec<String> = config.paths().iter().map(|path| path.display().to_string()).collect();
        let _ = write!(out, "\nedits are made in a copy of {}", paths.join(", "));
    }
    let (_, small) = tunings.proposals(false);
    if small > 0 {
        let _ = write!(
            out,
            "\n{small} more are expected to gain too little to be measured: flatout tune shows them"
        );
    }
    out
}

fn description(rung: &Rung) -> String {
    match &rung.change {
        Attempt::Tuning => {
            let about = find(&rung.name).map(|tuning| tuning.about());
            about.map_or(String::new(), |about| match about.lost {
                "" => format!("{} risk: {}", about.risk.name(), about.reason),
                lost => format!("{} risk, while it is tried {lost}: {}", about.risk.name(), about.reason),
            })
        }
        Attempt::Edit(edit) => format!("in the server's configuration: {}", edit.what),
        Attempt::Variant(variant) => {
            match (&variant.set, &variant.server_arguments, &variant.server_command) {
                (Some(set), _, _) => format!("`{set}`"),
                (None, Some(arguments), _) => format!("the server with {arguments}"),
                (None, None, Some(command)) => format!("`{command}`"),
                (None, None, None) => String::new(),
            }
        }
        Attempt::Skip(why) => format!("not tried: {why}"),
    }
}
