// SPDX-License-Identifier: GPL-2.0-or-later
//! The emulated card as a process: `fermata-card --socket … --control … --log …`, or `fermata-card
//! check LOG`.

use anyhow::{anyhow, Context, Result};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use fermata_card::card::Card;
use fermata_card::config::{CardConfig, IrqKind, Profile, RETIRED};
use fermata_card::control::ControlServer;
use fermata_card::device::Device;
use fermata_card::engine::EngineKind;
use fermata_card::event::What;
#[cfg(not(target_feature = "crt-static"))]
use fermata_card::foreign::{library, Foreign, Make};
use fermata_card::log::{replay, Judge, Recorder};
use fermata_card::vfio::{remove_socket, Server};
use fermata_command_line::OfParser;
use fermata_output::{complain, say};
use std::ffi::CString;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

#[derive(Parser)]
#[command(
    name = "fermata-card",
    version,
    about,
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Option<Serve>,
}

#[derive(Subcommand)]
enum Command {
    /// Replay a log through the checker; exit 1 when it finds violations
    Check {
        /// The log of a card
        log: PathBuf,
    },
    #[command(flatten)]
    OfParser(OfParser),
}

/// Serve an emulated card; exit 1 when its checker has found violations
#[derive(Args)]
struct Serve {
    /// vfio-user socket, for QEMU
    #[arg(long)]
    socket: PathBuf,
    /// Control socket
    #[arg(long)]
    control: PathBuf,
    /// Log of all that the card sees
    #[arg(long)]
    log: PathBuf,
    /// Register profile
    #[arg(long, value_parser = profile_parser(), default_value = "irq")]
    profile: Profile,
    /// Interrupts (a base card has none)
    #[arg(long, value_enum, default_value = "msix")]
    irq: IrqKind,
    /// Have the capability for address translation services, which the card does not use
    #[arg(long)]
    ats: bool,
    /// Accept each restore of a state that this card has not saved, as `imports on` does
    #[arg(long)]
    imports: bool,
    /// The engine of each slot
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "linkedlist,membench,sha256"
    )]
    slots: Vec<EngineKind>,
    /// Settings: slot=N|all,key=value[,key=value]...
    #[arg(long)]
    set: Vec<String>,
    /// A library that is the card in place of the emulated one (fermata-card.h)
    #[arg(long, value_name = "LIBRARY", conflicts_with_all = ["slots", "ats"])]
    foreign: Option<PathBuf>,
    /// A text that the library of --foreign gets
    #[arg(long, value_name = "TEXT", default_value = "", requires = "foreign")]
    argument: CString,
}

/// Returns the parser of profiles. It accepts the retired name, and prints the new name on the
/// error output.
fn profile_parser() -> impl TypedValueParser<Value = Profile> {
    let profiles = Profile::value_variants().iter();
    PossibleValuesParser::new(profiles.filter_map(ValueEnum::to_possible_value)).map(|name| {
        if name == RETIRED {
            complain!("fermata-card: the profile {RETIRED} is now called irq");
        }
        Profile::from_str(&name, false).expect("the name is one of the possible values")
    })
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match (cli.command, cli.serve) {
        (Some(Command::Check { log }), _) => check(&log),
        (Some(Command::OfParser(command)), _) => command.run::<Cli>().map(|()| ExitCode::SUCCESS),
        (None, Some(args)) => serve(&args),
        (None, None) => Err(anyhow!(
            "--socket, --control and --log are needed, or check LOG"
        )),
    };
    fermata_output::status(result.unwrap_or_else(|e| {
        complain!("fermata-card: {e:#}");
        ExitCode::from(2)
    }))
}

fn check(log: &Path) -> Result<ExitCode> {
    let file = File::open(log).with_context(|| log.display().to_string())?;
    let judge = replay(BufReader::new(file)).with_context(|| log.display().to_string())?;
    say!("{}", judge.checker.text());
    let Some(last) = violation(&judge) else {
        return Ok(ExitCode::SUCCESS);
    };
    say!("{last}");
    Ok(ExitCode::FAILURE)
}

/// Returns the last violation, if there is any.
fn violation(judge: &Judge) -> Option<String> {
    (judge.checker.total() != 0).then(|| format!("last: {}", judge.checker.why()))
}

/// Listens on a socket. Who connects to a card reaches the memory of its machine.
fn listen(path: &Path) -> Result<UnixListener> {
    remove_socket(path).with_context(|| path.display().to_string())?;
    UnixListener::bind(path).with_context(|| path.display().to_string())
}

type Stop = Box<dyn FnOnce()>;

impl Serve {
    /// Makes the card, and a function that ends its threads.
    fn card(&self, recorder: &Recorder) -> Result<(Arc<dyn Device>, Stop)> {
        if let Some(library) = &self.foreign {
            let card = foreign_card(self, library, recorder);
            return card.map_err(|error| anyhow!("{}: {error}", library.display()));
        }
        let mut config =
            CardConfig::new(self.profile, self.irq, &self.slots).map_err(|e| anyhow!(e))?;
        config.ats = self.ats;
        for text in &self.set {
            config
                .apply(text)
                .map_err(|e| anyhow!("--set {text}: {e}"))?;
        }
        let card = Card::new(config, recorder.clone());
        Ok((card.clone(), Box::new(move || card.stop())))
    }
}

#[cfg(not(target_feature = "crt-static"))]
fn foreign_card(
    args: &Serve,
    path: &Path,
    recorder: &Recorder,
) -> Result<(Arc<dyn Device>, Stop), String> {
    let make = Make {
        profile: args.profile,
        irq: args.irq,
        settings: args.set.clone(),
        argument: args.argument.clone(),
    };
    library::print_to_error_output().map_err(|error| error.to_string())?;
    let card = Foreign::start(library::load(path)?, make, recorder.clone())?;
    Ok((card.clone(), Box::new(move || card.stop())))
}

#[cfg(target_feature = "crt-static")]
fn foreign_card(_: &Serve, _: &Path, _: &Recorder) -> Result<(Arc<dyn Device>, Stop), String> {
    Err(
        "a program that is linked statically cannot load it: use the fermata-card that `make \
         libraries` builds"
            .into(),
    )
}

fn serve(args: &Serve) -> Result<ExitCode> {
    // Sockets and the log are for the user only.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let log = File::create(&args.log).with_context(|| args.log.display().to_string())?;
    let (recorder, writer) = Recorder::start(Box::new(BufWriter::with_capacity(1 << 18, log)));
    let output = rustix::io::dup(std::io::stdout()).context("standard output")?;
    let (card, stop) = args.card(&recorder)?;
    if args.imports {
        recorder.record(What::Imports { on: true });
    }
    let server = Arc::new(Server::new(card.clone(), listen(&args.socket)?));
    let control = listen(&args.control)?;
    server.stop_on_signals()?;
    let quit = server.clone();
    let commands = ControlServer::new(card.clone(), move || quit.stop());
    std::thread::spawn(move || commands.serve(&control));
    let _ = rustix::io::write(&output, b"ready\n");
    drop(output);
    let end = server.run(|error| complain!("vfio-user client lost: {error}"));
    stop();
    let last = recorder.ask(|judge| violation(judge).unwrap_or_default());
    recorder.stop();
    let _ = writer.join();
    let _ = std::fs::remove_file(&args.socket);
    let _ = std::fs::remove_file(&args.control);
    end.context("vfio-user socket")?;
    if last.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    complain!("{last}");
    Ok(ExitCode::FAILURE)
}
