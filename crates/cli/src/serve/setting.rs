//! A setting of a server, complete: flags, words of a site file, the reference page and the schema are all generated
//! from this table.

use flatout_config::parts;
use flatout_server::Plan;

use super::options::ServeOptions;
use super::values::{Refused, Values};

/// A setting.
pub(crate) struct ServeSetting {
    /// The flag without dashes, and the word in a file.
    pub(super) name: &'static str,
    /// Its values, in the notation of [`flatout_config::parts`].
    pub(super) value: &'static str,
    /// Its `name=value` keys.
    pub(super) keys: &'static [Key],
    /// Its default; empty if there is none.
    pub(super) default: &'static str,
    /// Its description. The part before the first semicolon is the short help, and must make sense alone.
    pub(super) help: &'static str,
    /// Where it is allowed in a file.
    pub(super) stands: SettingScope,
    /// Whether it may be repeated at one level.
    pub(super) is_list: bool,
    /// Whether each of its values is a separate argument of the flag, as a shell needs it for file names.
    pub(super) is_spread: bool,
    /// Parses the given values into the options.
    pub(super) set: fn(&mut ServeOptions, &Values) -> Result<(), Refused>,
    /// What a reload does with a change of it.
    pub(super) change: Change,
}

/// What a reload does with a change of a setting.
#[derive(Clone, Copy)]
pub(super) enum Change {
    /// It applies the change.
    Live,
    /// It applies the change, but refuses to add the first one and to remove the last one. The value in a plan differs in
    /// these cases.
    NotFirstNorLast(fn(&Plan) -> String),
    /// It refuses the change. The value in a plan is compared with that of the start.
    Restart(fn(&Plan) -> String),
}

impl Change {
    /// What must not differ after a reload.
    pub(super) fn needs_restart(self) -> Option<fn(&Plan) -> String> {
        match self {
            Change::Live => None,
            Change::NotFirstNorLast(value) | Change::Restart(value) => Some(value),
        }
    }

    /// The same for a manual; empty if it applies the change.
    pub(super) fn text(self) -> &'static str {
        match self {
            Change::Live => "",
            Change::NotFirstNorLast(_) => "; adding the first or removing the last needs a restart",
            Change::Restart(_) => "; a change needs a restart",
        }
    }
}

/// A `name=value` key.
pub(super) struct Key {
    pub(super) name: &'static str,
    /// Its value, in the same notation.
    pub(super) value: &'static str,
    pub(super) default: &'static str,
    pub(super) help: &'static str,
}

/// Where a setting is allowed in a file. At the top it is the default for everything inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SettingScope {
    /// Only at the top: it belongs to the server.
    Top,
    /// At the top, in a site.
    Site,
    /// At the top, in a site, in a route.
    Route,
    /// At the top, in an upstream.
    Upstream,
}

/// Defaults for a setting of the server.
pub(super) const SERVERS: ServeSetting = ServeSetting {
    name: "",
    value: "",
    keys: &[],
    default: "",
    help: "",
    stands: SettingScope::Top,
    is_list: false,
    is_spread: false,
    set: |_, _| Ok(()),
    change: Change::Live,
};

/// Defaults for a setting of sites, and of the server for its sites.
pub(super) const SITES: ServeSetting = ServeSetting { stands: SettingScope::Site, ..SERVERS };

/// Defaults for a setting of routes, and of sites and the server for their routes.
pub(super) const ROUTES: ServeSetting = ServeSetting { stands: SettingScope::Route, ..SERVERS };

/// Defaults for a setting of upstreams.
pub(super) const UPSTREAMS: ServeSetting = ServeSetting { stands: SettingScope::Upstream, ..SERVERS };

/// Defaults for a key.
pub(super) const KEY: Key = Key { name: "", value: "TEXT", default: "", help: "" };

/// Related settings, under one heading.
pub(super) type ServeGroup = (&'static str, &'static [ServeSetting]);

impl ServeSetting {
    /// Whether the setting takes exactly one value.
    pub(super) fn is_single(&self) -> bool {
        self.keys.is_empty()
            && parts(self.value).filter(|part| !part.repeats).count() == parts(self.value).count()
            && parts(self.value).count() == 1
    }

    /// The number of arguments of its flag: one per value, or one for all.
    pub(super) fn arguments(&self) -> usize {
        if self.is_spread { parts(self.value).count().max(1) } else { 1 }
    }

    /// Its notation in a manual: values and keys.
    pub(super) fn notation(&self) -> String {
        let keys = self.keys.iter().map(|key| format!("[{}={}]", key.name, key.value));
        let all = std::iter::once(self.value.to_owned()).chain(keys).filter(|text| !text.is_empty());
        all.collect::<Vec<_>>().join(" ")
    }
}
