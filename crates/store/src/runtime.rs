//! The threads that send requests, for all volumes of the process, and the one entry to them.
//!
//! Every future passes as one boxed type: the machinery that polls a future is compiled once, and not for each of them. The
//! box costs one allocation for each wait, beside a request.

use std::pin::Pin;
use std::sync::OnceLock;

use crate::place::PlaceError;

/// See the module's header.
#[derive(Clone, Copy)]
pub(crate) struct Runtime(&'static tokio::runtime::Runtime);

/// The threads, started at the first call.
pub(crate) fn runtime() -> Result<Runtime, PlaceError> {
    static RUNTIME: OnceLock<Result<tokio::runtime::Runtime, std::io::Error>> = OnceLock::new();
    let made = RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("store")
            .enable_all()
            .build()
    });
    made.as_ref()
        .map(Runtime)
        .map_err(|e| PlaceError::Threads(std::io::Error::new(e.kind(), e.to_string())))
}

impl Runtime {
    /// Waits for a future.
    pub(crate) fn block_on<T>(self, future: impl Future<Output = T>) -> T {
        let mut output = None;
        self.wait(Box::pin(async { output = Some(future.await) }));
        match output {
            Some(output) => output,
            None => unreachable!("a future that has ended has an output"),
        }
    }

    fn wait(self, future: Pin<Box<dyn Future<Output = ()> + '_>>) {
        self.0.block_on(future);
    }

    /// Begins a future; nobody waits for its end.
    pub(crate) fn spawn(self, future: impl Future<Output = ()> + Send + 'static) {
        self.begin(Box::pin(future));
    }

    fn begin(self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.spawn(future);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_future_may_borrow_and_its_output_comes_back() {
        let words = ["a".to_owned(), "b".to_owned()];
        let runtime = runtime().unwrap();
        let joined = runtime.block_on(async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            words.join(" ")
        });
        assert_eq!(joined, "a b");
    }

    #[test]
    fn a_future_that_was_begun_runs_on_its_own() {
        let (tell, told) = mpsc::channel();
        let begun = async move { tell.send(7).unwrap() };
        runtime().unwrap().spawn(begun);
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(7));
    }
}
