//! FSSTAT, FSINFO, PATHCONF: space and limits of a volume.

use nfs3_types::nfs3::{
    FSF3_CANSETTIME, FSF3_HOMOGENEOUS, FSF3_LINK, FSF3_SYMLINK, FSINFO3res, FSINFO3resfail,
    FSINFO3resok, FSSTAT3res, FSSTAT3resfail, FSSTAT3resok, Nfs3Result, PATHCONF3res,
    PATHCONF3resfail, PATHCONF3resok, nfstime3,
};

use super::{Context, TRANSFER_BYTES_MAX, failed, read_handle};
use crate::xdr::{Decoder, Parsed};

/// Suggested multiple of transfer sizes.
const TRANSFER_UNIT: u32 = 4096;
/// Preferred size of a READDIR.
const LISTING_BYTES: u32 = 64 << 10;

pub(super) fn fsstat(cx: &Context<'_>, args: &mut Decoder<'_>) -> Parsed<FSSTAT3res> {
    let handle = read_handle(args)?;
    let state = cx.node(handle).and_then(|node| {
        let state = failed(node.volume.fs().statfs())?;
        let attr = node.attr()?;
        let bytes = |blocks: u64| blocks.saturating_mul(u64::from(state.block_size));
        Ok(FSSTAT3resok {
            obj_attributes: node.post_op(Some(&attr)),
            tbytes: bytes(state.blocks),
            fbytes: bytes(state.blocks_free),
            abytes: bytes(state.blocks_free),
            tfiles: state.inodes,
            ffiles: state.inodes_free,
            afiles: state.inodes_free,
            invarsec: 0,
        })
    });
    Ok(match state {
        Ok(state) => Nfs3Result::Ok(state),
        Err(status) => Nfs3Result::Err((status, FSSTAT3resfail::default())),
    })
}

pub(super) fn fsinfo(cx: &Context<'_>, args: &mut Decoder<'_>) -> Parsed<FSINFO3res> {
    let handle = read_handle(args)?;
    let info = cx.node(handle).and_then(|node| {
        let attr = node.attr()?;
        Ok(FSINFO3resok {
            obj_attributes: node.post_op(Some(&attr)),
            rtmax: TRANSFER_BYTES_MAX,
            rtpref: TRANSFER_BYTES_MAX,
            rtmult: TRANSFER_UNIT,
            wtmax: TRANSFER_BYTES_MAX,
            wtpref: TRANSFER_BYTES_MAX,
            wtmult: TRANSFER_UNIT,
            dtpref: LISTING_BYTES,
            maxfilesize: node.volume.limits().file_bytes_max,
            time_delta: nfstime3 {
                seconds: 0,
                nseconds: 1,
            },
            properties: FSF3_LINK | FSF3_SYMLINK | FSF3_HOMOGENEOUS | FSF3_CANSETTIME,
        })
    });
    Ok(match info {
        Ok(info) => Nfs3Result::Ok(info),
        Err(status) => Nfs3Result::Err((status, FSINFO3resfail::default())),
    })
}

pub(super) fn pathconf(cx: &Context<'_>, args: &mut Decoder<'_>) -> Parsed<PATHCONF3res> {
    let handle = read_handle(args)?;
    let limits = cx.node(handle).and_then(|node| {
        let name_max = failed(node.volume.fs().statfs())?.name_max;
        let attr = node.attr()?;
        Ok(PATHCONF3resok {
            obj_attributes: node.post_op(Some(&attr)),
            linkmax: node.volume.limits().links_max,
            name_max,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        })
    });
    Ok(match limits {
        Ok(limits) => Nfs3Result::Ok(limits),
        Err(status) => Nfs3Result::Err((status, PATHCONF3resfail::default())),
    })
}
