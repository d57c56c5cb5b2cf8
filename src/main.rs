use std::process::ExitCode;

fn main() -> ExitCode {
    gspbench::cli::main().into()
}
