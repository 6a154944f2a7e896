//! One setting of a server, with all that is said of it: the table from which flags, words of a site file, the reference
//! page and the schema are made.

use flatout_config::parts;

use super::given::{Given, Refused};
use super::options::Options;

/// A setting.
pub(crate) struct Setting {
    /// The flag without dashes, and the word in a file.
    pub(super) name: &'static str,
    /// Its values, in the notation of [`flatout_config::parts`].
    pub(super) value: &'static str,
    /// What may stand behind them as `name=value`.
    pub(super) keys: &'static [Key],
    /// What it is unless given; empty where nothing is.
    pub(super) default: &'static str,
    /// What it does. Up to the first semicolon it has to make sense alone: that much is the short help.
    pub(super) help: &'static str,
    /// Where it may stand in a file.
    pub(super) stands: Stands,
    /// Whether it may be given several times in one place.
    pub(super) is_list: bool,
    /// Whether each of its values is an argument of its own as a flag, as file names are for a shell.
    pub(super) is_spread: bool,
    /// Reads what was given into the options.
    pub(super) set: fn(&mut Options, &Given) -> Result<(), Refused>,
}

/// A value with a name.
pub(super) struct Key {
    pub(super) name: &'static str,
    /// Its value, in the same notation.
    pub(super) value: &'static str,
    pub(super) default: &'static str,
    pub(super) help: &'static str,
}

/// Where a setting may stand in a file. At the top it is the default of what is within.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stands {
    /// At the top only: it is the server's.
    Top,
    /// At the top, in a site.
    Site,
    /// At the top, in a site, in a route.
    Route,
    /// At the top, in an upstream.
    Upstream,
}

/// A setting of the server, for all that it does not say otherwise.
pub(super) const SERVERS: Setting = Setting {
    name: "",
    value: "",
    keys: &[],
    default: "",
    help: "",
    stands: Stands::Top,
    is_list: false,
    is_spread: false,
    set: |_, _| Ok(()),
};

/// A setting of sites, and of the server for its sites.
pub(super) const SITES: Setting = Setting { stands: Stands::Site, ..SERVERS };

/// A setting of routes, and of sites and the server for their routes.
pub(super) const ROUTES: Setting = Setting { stands: Stands::Route, ..SERVERS };

/// A setting of upstreams.
pub(super) const UPSTREAMS: Setting = Setting { stands: Stands::Upstream, ..SERVERS };

/// A key, for all that it does not say otherwise.
pub(super) const KEY: Key = Key { name: "", value: "TEXT", default: "", help: "" };

/// Settings that belong together, under one heading.
pub(super) type Group = (&'static str, &'static [Setting]);

impl Setting {
    /// Whether the setting takes exactly one value.
    pub(super) fn is_single(&self) -> bool {
        self.keys.is_empty()
            && parts(self.value).filter(|part| !part.repeats).count() == parts(self.value).count()
            && parts(self.value).count() == 1
    }

    /// How many arguments it takes as a flag: one for each value, or one for all.
    pub(super) fn arguments(&self) -> usize {
        if self.is_spread { parts(self.value).count().max(1) } else { 1 }
    }

    /// It as a manual shows it: values and keys.
    pub(super) fn notation(&self) -> String {
        let keys = self.keys.iter().map(|key| format!("[{}={}]", key.name, key.value));
        let all = std::iter::once(self.value.to_owned()).chain(keys).filter(|text| !text.is_empty());
        all.collect::<Vec<_>>().join(" ")
    }
}

impl Stands {
    /// The places, in words.
    pub(super) fn names(self) -> &'static str {
        match self {
            Stands::Top => "top",
            Stands::Site => "top, site",
            Stands::Route => "top, site, route",
            Stands::Upstream => "top, upstream",
        }
    }
}
