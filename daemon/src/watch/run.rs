//! The loop: it asks the broker once a second, keys change the view, and signals and errors end the loop.

use super::columns::{Room, rooms};
use super::draw::draw;
use super::moment::{Column, Moment};
use super::terminal::Terminal;
use super::view::{Question, View, Wish};
use crate::broker::{ClientError, Request, Status, ask, status};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// The reason why a view ends, unless the operator ended it.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The first request to the broker has failed.
    #[error(transparent)]
    Broker(#[from] ClientError),
    /// A later request to the broker has failed.
    #[error("the broker has ended or does not answer any more: {0}")]
    Ended(ClientError),
    /// The terminal cannot be used.
    #[error("the terminal cannot be used: {0}")]
    Terminal(#[from] io::Error),
}

/// Time between two questions to the broker.
const PERIOD: Duration = Duration::from_secs(1);

/// An event that the loop has to act upon.
#[derive(Debug)]
enum Happening {
    /// A key, or another size of the terminal.
    Terminal(io::Result<Event>),
    /// The broker's answer, or the reason why it gives none.
    Status(Result<Box<Status>, ClientError>),
    /// The result of a request to kill a context.
    Killed(Question, Result<(), ClientError>),
    Signal(i32),
}

/// Shows the state of the broker that listens at `socket`, until the operator has seen enough. A signal ends the program as it would without a
/// handler, once the terminal is as before.
///
/// # Errors
///
/// No broker answers, or the broker ends, or the terminal cannot be used.
pub fn watch(socket: &Path) -> Result<(), WatchError> {
    let first = status(socket)?;
    let (happens, happenings) = unbounded();
    let (kills, wanted) = bounded(1);
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])?;
    let terminal = Terminal::take()?;
    // The threads need not end before the process does.
    std::thread::spawn({
        let happens = happens.clone();
        move || signals.forever().try_for_each(|signal| happens.send(Happening::Signal(signal)))
    });
    std::thread::spawn({
        let happens = happens.clone();
        move || {
            std::iter::repeat_with(event::read).try_for_each(|event| happens.send(Happening::Terminal(event)))
        }
    });
    std::thread::spawn({
        let socket = socket.to_owned();
        move || ask_on_and_on(&socket, &happens, &wanted)
    });
    let signal = Watching::new(terminal, first, kills).run(&happenings)?;
    if let Some(signal) = signal {
        emulate_default_handler(signal)?;
    }
    Ok(())
}

/// Asks for the status once a second, and at once after a request to kill a context.
fn ask_on_and_on(socket: &Path, happens: &Sender<Happening>, wanted: &Receiver<Question>) {
    loop {
        if let Ok(question) = wanted.recv_timeout(PERIOD) {
            let request = Request::Kill { vm: question.vm.clone(), context: question.context };
            let killed = ask(socket, &request).map(drop);
            if happens.send(Happening::Killed(question, killed)).is_err() {
                return;
            }
        }
        if happens.send(Happening::Status(status(socket).map(Box::new))).is_err() {
            return;
        }
    }
}

/// A view that is shown.
#[derive(Debug)]
struct Watching {
    /// `None` while the operator has suspended the program.
    terminal: Option<Terminal>,
    moment: Moment,
    /// The time at which the status came.
    at: Instant,
    view: View,
    kills: Sender<Question>,
}

impl Watching {
    fn new(terminal: Terminal, status: Status, kills: Sender<Question>) -> Self {
        let (moment, at) = (Moment::new(status, None), Instant::now());
        Self { terminal: Some(terminal), moment, at, view: View::default(), kills }
    }

    /// Runs until the operator or a signal ends the view. Returns the signal.
    fn run(mut self, happenings: &Receiver<Happening>) -> Result<Option<i32>, WatchError> {
        self.view.settle(&self.moment);
        self.show()?;
        while let Ok(happening) = happenings.recv() {
            match happening {
                Happening::Signal(signal) => return Ok(Some(signal)),
                Happening::Status(status) => self.renew(*status.map_err(WatchError::Ended)?),
                Happening::Killed(question, killed) => self.tell(&question, killed),
                Happening::Terminal(event) => match event? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => {
                        let columns: Vec<Column> = self.rooms()?.iter().map(|room| room.column).collect();
                        match self.view.press(key, &self.moment, &columns) {
                            Wish::None => {}
                            Wish::Quit => return Ok(None),
                            Wish::Interrupt => return Ok(Some(SIGINT)),
                            Wish::Suspend => self.suspend()?,
                            Wish::Kill(question) => self.kill(question),
                        }
                    }
                    _ => {}
                },
            }
            self.show()?;
        }
        Ok(None)
    }

    fn renew(&mut self, status: Status) {
        let now = Instant::now();
        let before = std::mem::take(&mut self.moment.status);
        self.moment = Moment::new(status, Some((&before, now - self.at)));
        self.at = now;
        self.view.settle(&self.moment);
    }

    fn kill(&mut self, question: Question) {
        let Question { vm, context, program } = &question;
        self.view.notice = format!("{vm}/{context} {program} is being killed …");
        if self.kills.try_send(question).is_err() {
            self.view.notice = "The broker has not answered yet: try again.".into();
        }
    }

    fn tell(&mut self, Question { vm, context, program }: &Question, killed: Result<(), ClientError>) {
        self.view.notice = match killed {
            Ok(()) => format!("{vm}/{context} {program} was killed."),
            Err(error) => error.to_string(),
        };
    }

    /// Stops the program until its shell lets it go on.
    fn suspend(&mut self) -> io::Result<()> {
        self.terminal = None;
        emulate_default_handler(SIGTSTP)?;
        self.terminal = Some(Terminal::take()?);
        Ok(())
    }

    fn rooms(&self) -> io::Result<Vec<Room>> {
        let size = self.terminal.as_ref().map(Terminal::size).transpose()?;
        Ok(size.map(|size| rooms(size.width)).unwrap_or_default())
    }

    fn show(&mut self) -> io::Result<()> {
        let Some(terminal) = &mut self.terminal else { return Ok(()) };
        let size = terminal.size()?;
        terminal.show(&draw(&self.moment, &self.view, size))
    }
}
