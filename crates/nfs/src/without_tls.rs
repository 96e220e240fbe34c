//! The interface of `tls` in a build without the feature `tls`: no settings can be made, so no session begins.

use std::path::Path;

use crate::ending::Ending;
use crate::security::Security;

/// Errors of the TLS settings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The program cannot do TLS.
    #[error("this program was built without TLS (feature `tls` of steadfast-nfs)")]
    NotBuilt,
}

/// TLS settings of a server. None can be made.
#[derive(Clone, Debug)]
pub enum Tls {}

impl Tls {
    /// Fails.
    ///
    /// # Errors
    /// [`TlsError::NotBuilt`].
    pub fn from_files(_cert: &Path, _key: &Path, _ca: Option<&Path>) -> Result<Tls, TlsError> {
        Err(TlsError::NotBuilt)
    }

    /// Never called.
    ///
    /// # Errors
    /// None.
    pub fn refresh(&self) -> Result<bool, TlsError> {
        match *self {}
    }

    /// Never called.
    ///
    /// # Errors
    /// None.
    pub fn reread(&self) -> Result<(), TlsError> {
        match *self {}
    }

    /// Never called.
    #[must_use]
    pub fn best(&self) -> Security {
        match *self {}
    }

    pub(crate) fn session(&self) -> Option<Session> {
        match *self {}
    }
}

/// The TLS session of a connection. None begins.
#[derive(Debug)]
pub(crate) enum Session {}

/// The result of opening bytes.
pub(crate) struct Opened {
    pub(crate) established: bool,
    pub(crate) closed: bool,
    pub(crate) answers: bool,
    pub(crate) whole: bool,
}

/// Reason of the TLS library. There is none.
pub(crate) type Error = std::convert::Infallible;

/// Reasons why bytes cannot be opened.
#[allow(dead_code, reason = "no session gives one")]
pub(crate) enum Broken {
    Tls(Error),
    Inside(Ending),
}

impl Session {
    pub(crate) fn security(&self) -> Security {
        match *self {}
    }

    pub(crate) fn open(
        &self,
        _wire: &[u8],
        _take: impl FnMut(&[u8]) -> Result<(), Ending>,
    ) -> Result<Opened, Broken> {
        match *self {}
    }

    pub(crate) fn seal(&self, _reply: &[u8]) -> Option<Vec<u8>> {
        match *self {}
    }

    pub(crate) fn farewell(&self) -> Vec<u8> {
        match *self {}
    }
}
