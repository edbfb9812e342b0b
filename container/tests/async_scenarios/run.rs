//! One run of a scenario: its server, its journal, and what ops keep between callbacks.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use ringcat::{AsyncContext, RunningServer};

use crate::{
    client::Client,
    expectation::Expectation,
    grammar::{Fault, Op},
    journal::{Journal, Pages},
    log,
    scenario::Setup,
    server,
};

/// What the callbacks of a run share.
pub(crate) struct Run {
    pub(crate) journal: Journal,
    pub(crate) setup: Setup,
    variant: Vec<(String, String)>,
    server: Mutex<Option<RunningServer>>,
    pub(crate) threads: Mutex<BTreeMap<String, Vec<JoinHandle<()>>>>,
    /// Contexts that `keep` put on lists, by the name of the list.
    pub(crate) kept: Mutex<BTreeMap<String, Vec<AsyncContext>>>,
    /// What `remember` left for `same_context`.
    pub(crate) remembered: Mutex<Option<AsyncContext>>,
}

/// The time in which the workers and requests of a script come to their end.
const SETTLE_MAX: Duration = Duration::from_secs(30);

/// What comes later than this after the end belongs to nothing.
const QUIET: Duration = Duration::from_millis(250);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Plays a scenario; answers what does not hold, and what happened.
pub(crate) fn play(
    setup: Setup,
    client_ops: &[Op],
    expectation: &Expectation,
    variant: Vec<(String, String)>,
) -> (Vec<Fault>, Pages) {
    let run = Arc::new(Run {
        journal: Journal::default(),
        setup,
        variant,
        server: Mutex::default(),
        threads: Mutex::default(),
        kept: Mutex::default(),
        remembered: Mutex::default(),
    });
    log::install(Arc::clone(&run));
    let started = server::build(&run).and_then(|builder| {
        builder.start().map_err(|error| format!("the server does not start: {error}"))
    });
    let address = match started {
        Ok(server) => {
            let address = server.local_addr();
            *lock(&run.server) = Some(server);
            address
        }
        Err(fault) => return (vec![fault], Pages::default()),
    };
    let mut client = Client::new(Arc::clone(&run), address);
    if let Err(fault) = client.run(client_ops) {
        run.journal.fault(fault);
    }
    let is_settled = run.journal.wait(SETTLE_MAX, |pages| {
        pages.workers == 0 && pages.requests >= pages.count("requestInitialized")
    });
    if !is_settled {
        run.journal.fault("a worker still runs, or a request has not ended");
    }
    thread::sleep(QUIET);
    let pages = run.journal.pages();
    let mut faults = expectation.judge(&pages, &client.answers);
    let mut connections = BTreeMap::new();
    for (expected, answer) in expectation.responses.iter().zip(&client.answers) {
        if let Some(keeps_alive) = expected.keeps_alive {
            connections.insert(answer.connection.clone(), keeps_alive);
        }
    }
    for (name, keeps_alive) in connections {
        faults.extend(client.check_connection(&name, keeps_alive).err());
    }
    faults.extend(run.journal.pages().faults);
    (faults, pages)
}

impl Run {
    pub(crate) fn variant(&self, name: &str) -> &str {
        let value = self.variant.iter().find(|(own, _)| own == name);
        value.map_or("", |(_, value)| value)
    }

    /// Asks the server, if it still runs.
    pub(crate) fn with_server<R>(
        &self,
        ask: impl FnOnce(&RunningServer) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        lock(&self.server).as_ref().map_or_else(|| Err("the server has stopped".to_owned()), ask)
    }

    /// Stops something in the background.
    pub(crate) fn stop(
        self: &Arc<Self>,
        done: &'static str,
        stop: impl FnOnce(&RunningServer) -> Result<(), Fault> + Send + 'static,
    ) {
        let run = Arc::clone(self);
        self.journal.signal("stop");
        self.journal.change(|pages| pages.workers += 1);
        thread::spawn(move || {
            match run.with_server(stop) {
                Ok(()) => run.journal.note(done),
                Err(fault) => run.journal.fault(fault),
            }
            run.journal.change(|pages| pages.workers -= 1);
        });
    }

    pub(crate) fn stop_server(self: &Arc<Self>) {
        let run = Arc::clone(self);
        self.journal.signal("stop");
        self.journal.change(|pages| pages.workers += 1);
        thread::spawn(move || {
            if let Some(server) = lock(&run.server).take() {
                server.stop();
                run.journal.note("server stopped");
            }
            run.journal.change(|pages| pages.workers -= 1);
        });
    }
}
