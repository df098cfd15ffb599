//! zstd, which is decompressed frame by frame through a small buffer.
//!
//! Invariant: the decoder's window has at most [`WINDOW_MAX`] bytes. A frame that needs a larger window is refused, so
//! the caller must use `decompress` for it.

use super::super::view::BatchError;
use zstd::zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};

/// Maximum size of a window in bytes. This is the window of level 16.
pub const WINDOW_MAX: usize = 1 << WINDOW_LOG_MAX;
const WINDOW_LOG_MAX: u32 = 22;
/// The error that the decoder returns for `frameParameter_windowTooLarge`. zstd_errors.h promises to keep this number.
const WINDOW_TOO_LARGE: usize = 0usize.wrapping_sub(16);

/// A zstd decoder that can be used for many batches.
pub struct ZstdDecoder {
    context: DCtx<'static>,
}

impl Default for ZstdDecoder {
    fn default() -> Self {
        let mut context = DCtx::create();
        context.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX)).expect("between 10 and 27");
        ZstdDecoder { context }
    }
}

impl ZstdDecoder {
    /// Decompresses `input` through `buffer`, piece by piece.
    ///
    /// # Errors
    /// Returns [`BatchError::Malformed`] if `input` is not zstd, and [`BatchError::Memory`] if it needs a larger window
    /// than [`WINDOW_MAX`]. Also fails if `take` fails.
    pub fn pieces(
        &mut self,
        input: &[u8],
        buffer: &mut [u8],
        take: &mut impl FnMut(&[u8]) -> Result<(), BatchError>,
    ) -> Result<(), BatchError> {
        if input.is_empty() {
            return Err(BatchError::Malformed("the zstd data is empty"));
        }
        self.context.reset(ResetDirective::SessionOnly).map_err(|_| BatchError::Decompress)?;
        let mut from = InBuffer::around(input);
        loop {
            let mut to = OutBuffer::around(buffer);
            let is_end_of_frame = match self.context.decompress_stream(&mut to, &mut from) {
                Ok(hint) => hint == 0,
                Err(WINDOW_TOO_LARGE) => return Err(BatchError::Memory(WINDOW_MAX)),
                Err(_) => return Err(BatchError::Malformed("the zstd data is damaged")),
            };
            let made = to.pos();
            take(&buffer[..made])?;
            if from.pos() == input.len() {
                match is_end_of_frame {
                    true => return Ok(()),
                    false if made < buffer.len() => return Err(BatchError::Malformed("the zstd data is cut short")),
                    false => {}
                }
            }
        }
    }

    /// Returns the size of the decoder's memory in bytes.
    pub fn memory(&self) -> usize {
        self.context.sizeof()
    }
}
