//! Geometry: channels, dies, blocks, pages, sectors. Blocks have one number over all dies, so
//! that neighbouring numbers lie on different dies, and those on different channels.

/// Place of a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Address {
    /// Block, over all dies.
    pub block: u32,
    /// Page in the block.
    pub page: u32,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "block {} page {}", self.block, self.page)
    }
}

/// Structure of a flash memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Channels: transfers on different ones overlap.
    pub channels: u32,
    /// Dies on each channel: their array operations overlap.
    pub dies: u32,
    /// Blocks on each die: the unit of erasure.
    pub blocks: u32,
    /// Pages in each block: the unit of programming.
    pub pages: u32,
    /// Sectors in each page: the unit that hosts address.
    pub sectors: u32,
    /// Bytes of a sector.
    pub sector_bytes: u32,
    /// Spare bytes beside each page, written and read with it.
    pub spare_bytes: u32,
}

/// A geometry that cannot be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("impossible flash geometry: {what} is {value}, but must be {must}")]
pub struct GeometryError {
    /// Name of the number.
    pub what: &'static str,
    /// Its value.
    pub value: u64,
    /// Permitted values.
    pub must: &'static str,
}

impl Geometry {
    /// The geometry of the evaluation of SCFTL §7: 4 channels of 4 dies, 8 GiB,
    /// pages of 8 KiB in blocks of 512.
    #[must_use]
    pub fn paper() -> Geometry {
        Geometry {
            channels: 4,
            dies: 4,
            blocks: 128,
            pages: 512,
            sectors: 2,
            sector_bytes: 4096,
            spare_bytes: 64,
        }
    }

    /// Checks every number and the size of it all.
    ///
    /// # Errors
    /// [`GeometryError`] names the number that is out of bounds.
    pub fn check(&self) -> Result<(), GeometryError> {
        let bound = |what, value: u32, most: u32, must| {
            if value == 0 || value > most {
                let value = u64::from(value);
                return Err(GeometryError { what, value, must });
            }
            Ok(())
        };
        bound("channels", self.channels, 256, "1 to 256")?;
        bound("dies per channel", self.dies, 256, "1 to 256")?;
        bound("blocks per die", self.blocks, 1 << 20, "1 to 1048576")?;
        bound("pages per block", self.pages, 1 << 14, "1 to 16384")?;
        bound("sectors per page", self.sectors, 16, "1 to 16")?;
        bound("sector bytes", self.sector_bytes, 1 << 16, "1 to 65536")?;
        bound("spare bytes", self.spare_bytes, 1 << 12, "1 to 4096")?;
        for (what, value) in [
            ("sector bytes", self.sector_bytes),
            ("spare bytes", self.spare_bytes),
        ] {
            if !value.is_multiple_of(8) {
                let value = u64::from(value);
                let must = "a multiple of 8";
                return Err(GeometryError { what, value, must });
            }
        }
        let blocks = u64::from(self.channels) * u64::from(self.dies) * u64::from(self.blocks);
        if blocks > 1 << 26 {
            return Err(GeometryError {
                what: "number of blocks",
                value: blocks,
                must: "at most 67108864",
            });
        }
        Ok(())
    }

    /// Dies on all channels.
    #[must_use]
    pub fn all_dies(&self) -> u32 {
        self.channels * self.dies
    }

    /// Blocks on all dies.
    #[must_use]
    pub fn all_blocks(&self) -> u32 {
        self.all_dies() * self.blocks
    }

    /// Bytes of a page without its spare bytes.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.sectors as usize * self.sector_bytes as usize
    }

    /// Bytes of a page with its spare bytes, which come last.
    #[must_use]
    pub fn raw_bytes(&self) -> usize {
        self.page_bytes() + self.spare_bytes as usize
    }

    /// Bytes of all pages, without spare bytes.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        u64::from(self.all_blocks()) * u64::from(self.pages) * self.page_bytes() as u64
    }

    /// The die that holds a block.
    #[must_use]
    pub fn die_of(&self, block: u32) -> u32 {
        block % self.all_dies()
    }

    /// The channel of a die.
    #[must_use]
    pub fn channel_of(&self, die: u32) -> u32 {
        die % self.channels
    }

    /// Whether there is such a page.
    #[must_use]
    pub fn contains(&self, at: Address) -> bool {
        at.block < self.all_blocks() && at.page < self.pages
    }
}
