//! Folded lines, the format of Brendan Gregg's tools and many others.

use flatout_profile::{Frame, Kind, Profile};

/// A line for each stack: frames from the outermost on, separated by `;`, then a blank and the weight. Kernel
/// functions end in `_[k]`, inlined ones in `_[i]`.
pub fn folded(profile: &Profile) -> String {
    let mut text = String::new();
    for stack in profile.stacks.iter() {
        let names: Vec<String> = stack.frames.iter().map(|frame| name(frame)).collect();
        text.push_str(&format!("{} {}\n", names.join(";"), stack.weight));
    }
    text
}

/// A frame's name without characters that separate frames and lines.
fn name(frame: &Frame) -> String {
    let clean = frame.name.replace(';', ":").replace(char::is_control, " ");
    match frame.kind {
        Kind::Kernel => format!("{clean}_[k]"),
        Kind::Inlined => format!("{clean}_[i]"),
        Kind::Root | Kind::User => clean,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flame::scripted;

    #[test]
    fn each_stack_is_a_line() {
        let text = folded(&scripted::profile(None, 5));
        assert_eq!(
            text,
            "server;main 1000000\nserver;main;wire::head::parse_[i] 2000000\nserver;main;tcp_sendmsg_[k] 4000000\n\
             server;main;tcp_sendmsg_[k];nf_hook_slow_[k] 5\n"
        );
        assert_eq!(name(&Frame::new(Kind::User, "a;b\nc")), "a:b c");
    }
}
