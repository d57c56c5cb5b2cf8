//! The clap tree, one file or folder a subcommand. The only place that wires stages together: `args` are the flags that
//! commands share, `site` is the server of an arm, started, probed and watched, `block` is one measured run of it.

mod ab;
mod args;
mod block;
mod compare;
mod descriptors;
mod exit;
mod export;
mod facts;
mod form;
mod guard;
mod interrupt;
mod plan;
mod profiles;
mod report;
mod resume;
mod run;
mod say;
mod selftest;
mod sim;
mod site;
mod sweep;
mod truth;

use clap::Parser as _;

pub use exit::Exit;

/// Measures what session affinity is worth: drives an LLM server whose prefix cache is split over ranks, and compares
/// routing arms in interleaved rounds.
#[derive(Debug, clap::Parser)]
#[command(version, max_term_width = 110, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Ab(Box<ab::AbArgs>),
    Run(Box<run::RunArgs>),
    Sweep(Box<sweep::SweepArgs>),
    Compare(compare::CompareArgs),
    Report(report::ReportArgs),
    Plan(Box<plan::PlanArgs>),
    Profiles(profiles::ProfilesArgs),
    Sim(Box<sim::SimArgs>),
    Selftest(selftest::SelftestArgs),
    #[command(hide = true)]
    TruthServer(truth::TruthArgs),
    #[command(hide = true)]
    Guard(guard::GuardArgs),
    #[command(external_subcommand)]
    Other(Vec<String>),
}

/// Commands of the design that this version does not have.
const NOT_BUILT: [&str; 3] = ["predict", "fit", "merge"];

/// Parses the command line, runs one command and says how the program ends.
#[must_use]
pub fn main() -> Exit {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(shown) => return usage(&shown),
    };
    interrupt::survive_file_size_limit();
    run_command(&cli.command).unwrap_or_else(|error| {
        say::error(&error);
        Exit::of(&error)
    })
}

fn run_command(command: &Command) -> anyhow::Result<Exit> {
    match command {
        Command::Ab(args) => ab::run(args),
        Command::Run(args) => run::run(args),
        Command::Sweep(args) => sweep::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Report(args) => report::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Profiles(args) => profiles::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Selftest(args) => selftest::run(args),
        Command::TruthServer(args) => truth::run(args),
        Command::Guard(args) => guard::run(args),
        Command::Other(words) => Ok(unknown(words)),
    }
}

fn unknown(words: &[String]) -> Exit {
    let word = words.first().map(String::as_str).unwrap_or_default();
    if NOT_BUILT.contains(&word) {
        say::note(&format!("error: `gspbench {word}` is not built yet"));
    } else {
        say::note(&format!("error: there is no command `{word}`; `gspbench --help` lists the commands"));
    }
    Exit::Usage
}

/// Help and version are no mistakes.
fn usage(shown: &clap::Error) -> Exit {
    let is_mistake = shown.use_stderr();
    match shown.print() {
        _ if is_mistake => Exit::Usage,
        // A closed pipe is the reader's business.
        Err(why) if why.kind() != std::io::ErrorKind::BrokenPipe => {
            say::note(&format!("error: cannot write to standard output: {why}"));
            Exit::Internal
        }
        _ => Exit::Ok,
    }
}
