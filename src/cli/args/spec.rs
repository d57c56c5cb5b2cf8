//! The flags that lay values over a profile, as one group of arguments made from the table in [`super::flags`].

use anyhow::{Context as _, bail};
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};

use super::flags::{Effect, FLAGS, Flag};
use crate::profile::{self, Override, raw};

/// The flag of which each use may be one header in several words.
const HEADER: &str = "header";
/// The flags that take several values.
const SEVERAL: [&str; 2] = [HEADER, "goodput"];

/// Profile and flags as given, and the profile they make together.
#[derive(Debug, Clone, Default)]
pub(crate) struct SpecArgs {
    /// A built-in name or the path of a TOML file.
    profile: Option<String>,
    overrides: Vec<Override>,
    /// What was accepted and changes nothing, with the reason.
    pub notes: Vec<String>,
}

/// A profile with its flags laid over it.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub name: String,
    pub profile: raw::Profile,
    changes: Vec<Override>,
}

impl SpecArgs {
    /// Whether the command line names neither a profile nor a change of one.
    #[must_use]
    pub(crate) fn is_bare(&self) -> bool {
        self.profile.is_none() && self.overrides.is_empty()
    }

    /// Reads the profile, or `default` (a built-in one) when none was given, or else an empty one.
    ///
    /// # Errors
    /// When it cannot be read, or a key or value is wrong.
    pub(crate) fn load(&self, default: Option<&str>) -> anyhow::Result<Loaded> {
        let given = self.profile.as_deref().or(default);
        let (name, text) = match given {
            None => ("flags".to_owned(), String::new()),
            Some(given) => match profile::builtin(given) {
                Some(text) => (given.to_owned(), text.to_owned()),
                None => (stem(given), read(given)?),
            },
        };
        let profile = profile::load(given.unwrap_or("flags"), &text, &self.overrides)?;
        Ok(Loaded { name, profile, changes: self.overrides.clone() })
    }
}

impl Loaded {
    /// What is wrong with the profile, in the words of the command line where that said it.
    pub(crate) fn by_flag(&self, why: profile::ProfileError) -> profile::ProfileError {
        profile::by_flag(why, &self.changes)
    }

    /// What the command adds to the profile. The seed is drawn here, so that a second run never replays the first by
    /// accident; it is printed and stored.
    #[must_use]
    pub(crate) fn context(&self, compares_arms: bool) -> profile::Context {
        // Kept below 2^48 so that it survives every JSON reader.
        let drawn_seed = rand::random::<u64>() >> 16;
        profile::Context { name: self.name.clone(), drawn_seed, compares_arms }
    }
}

fn stem(path: &str) -> String {
    std::path::Path::new(path).file_stem().map_or_else(|| path.to_owned(), |stem| stem.to_string_lossy().into_owned())
}

fn read(path: &str) -> anyhow::Result<String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(why) => Err(profile::ProfileError::Unreadable { path: path.to_owned(), why: why.to_string() }.into()),
    }
}

impl clap::Args for SpecArgs {
    fn augment_args(command: Command) -> Command {
        let profile = Arg::new("profile")
            .value_name("PROFILE")
            .help("A built-in profile (see `gspbench profiles`) or a TOML file");
        let set = Arg::new("set")
            .long("set")
            .value_name("KEY=VALUE")
            .action(ArgAction::Append)
            .help("Set any key of the profile, as in --set workload.groups=16");
        FLAGS.iter().map(argument).fold(command.arg(profile), Command::arg).arg(set)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument(flag: &'static Flag) -> Arg {
    let arg = Arg::new(flag.name).long(flag.name).help(flag.help).help_heading(flag.heading);
    let arg = if flag.name.contains('-') { arg.alias(underscored(flag.name)) } else { arg };
    let arg = if matches!(flag.effect, Effect::Moot(_)) { arg.hide_short_help(true) } else { arg };
    match flag.value {
        // As in bench_serving, several may follow; what begins with a hyphen is the next flag.
        Some(value) if SEVERAL.contains(&flag.name) => arg.value_name(value).action(ArgAction::Append).num_args(1..),
        Some(value) => arg.value_name(value).action(ArgAction::Append).allow_hyphen_values(true),
        None => arg.action(ArgAction::SetTrue),
    }
}

/// clap keeps names for the whole run of the program and takes them only as such.
fn underscored(name: &str) -> &'static str {
    name.replace('-', "_").leak()
}

impl FromArgMatches for SpecArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Self::collect(matches)
            .map_err(|why| clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{why:#}\n")))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl SpecArgs {
    /// Flags take effect in the order of the table, whatever their order on the command line; `--set` comes last.
    fn collect(matches: &ArgMatches) -> anyhow::Result<Self> {
        if matches.get_flag("flush-cache") && matches.get_flag("no-flush-cache") {
            bail!("--flush-cache and --no-flush-cache contradict each other: give one of them");
        }
        let is_closed = matches
            .get_many::<String>("request-rate")
            .into_iter()
            .flatten()
            .next_back()
            .is_some_and(|rate| rate.parse::<f64>().is_ok_and(|rate| rate == f64::INFINITY));
        let mut headers = headers(matches);
        let profile = matches.get_one::<String>("profile").cloned().or_else(|| swallowed(&mut headers));
        let mut args = Self { profile, ..Self::default() };
        for flag in FLAGS {
            let values = if flag.name == HEADER { headers.concat() } else { given(matches, flag) };
            for value in values {
                let changes =
                    flag.overrides(&value).map_err(anyhow::Error::msg).with_context(|| format!("--{}", flag.name))?;
                // bench_serving's own command lines say both.
                if flag.name == "burstiness" && is_closed {
                    args.notes.push("--burstiness changes nothing: --request-rate inf has no gaps to shape".to_owned());
                    continue;
                }
                args.overrides.extend(changes);
                if let Effect::Moot(why) = flag.effect {
                    args.notes.push(format!("--{} changes nothing: {why}", flag.name));
                }
            }
        }
        let is_zipf =
            matches.get_many::<String>("gsp-group-distribution").into_iter().flatten().any(|name| name == "zipf");
        if matches.contains_id("gsp-zipf-alpha") && !is_zipf {
            bail!("--gsp-zipf-alpha: it needs --gsp-group-distribution zipf");
        }
        let is_pasted = matches.contains_id("dataset-name") || matches.contains_id("backend");
        if is_pasted && !matches.get_flag("gsp-send-routing-key") && !matches.contains_id("key-by") {
            let note = "every turn carries a routing key here, which bench_serving sends only with --gsp-send-routing-key; \
                        --key-by none sends none";
            args.notes.push(note.to_owned());
        }
        let sets = matches.get_many::<String>("set").into_iter().flatten();
        args.overrides.extend(sets.map(|text| Override::Assign(text.clone())));
        Ok(args)
    }

    /// Lays further changes over the profile, after all flags.
    pub(crate) fn also(&mut self, changes: impl IntoIterator<Item = Override>) {
        self.overrides.extend(changes);
    }
}

/// The values of a flag: for a switch that was given, one empty one.
fn given(matches: &ArgMatches, flag: &Flag) -> Vec<String> {
    match flag.value {
        Some(_) => matches.get_many::<String>(flag.name).into_iter().flatten().cloned().collect(),
        None if matches.get_flag(flag.name) => vec![String::new()],
        None => vec![],
    }
}

/// The values of `--header`, each time it was given.
fn headers(matches: &ArgMatches) -> Vec<Vec<String>> {
    let times = matches.get_occurrences::<String>(HEADER).into_iter().flatten();
    times.map(|values| values.cloned().collect()).collect()
}

/// The profile that a `--header` in front of it took for a further value: a last word that is no NAME=VALUE.
fn swallowed(headers: &mut [Vec<String>]) -> Option<String> {
    let values =
        headers.iter_mut().find(|values| values.len() > 1 && values.last().is_some_and(|last| !last.contains('=')))?;
    values.pop_if(|last| !last.contains(": "))
}
