"""The loader of a script: what builds batches."""

from __future__ import annotations

from vitprof.export.code.draft import Draft

BLOCK = 128
"""Neighbours that stay together in a block shuffle where the storage has no chunks (`loaders.order.BLOCK`)."""
COPIES = 3
"""Pinned buffers besides the batches that are kept ready: the one that the loop uses, and two being copied."""


def add_loader(draft: Draft) -> None:
    """Adds the loader to the draft."""
    config = draft.config
    if config.loader == "dali":
        draft.names.append("loader_dali")
        draft.opening += [
            f"paths, labels = find_images({draft.path})",
            "order = np.random.default_rng(SEED).permutation(len(paths))",
            "paths = [paths[i] for i in order]",
            "loader = Loader(paths, labels[order].tolist(), batch_size, device)",
            "n_classes = int(labels.max()) + 1",
        ]
        return
    if draft.form != "samples":
        draft.opening.append("n_classes = int(storage.labels.max()) + 1")
    if config.loader == "dataloader":
        _add_dataloader(draft)
        return
    if draft.form == "samples":
        draft.names.append("loader_generator_samples")
        draft.opening.append("loader = Loader(samples, batch_size)")
        return
    n = "len(storage.labels)"
    orders = {
        "full": f"torch.randperm({n}, generator=self.generator)",
        "none": f"torch.arange({n})",
        "block": f"block_order({n}, self.block, self.generator)",
    }
    keep = [] if config.shuffle == "none" else ["self.generator = torch.Generator().manual_seed(SEED)"]
    parameters, arguments = "", ""
    if config.shuffle == "block":
        draft.names.append("order_block")
        parameters, arguments, keep = ", block", f", {draft.block}", [*keep, "self.block = block"]
    if draft.fills_buffers:
        parameters, arguments = f"{parameters}, buffers", f"{arguments}, buffers"
        keep.append("self.buffers = buffers")
        ready = config.prefetch_factor or 0
        draft.opening += [
            "shape = (batch_size, *storage.shape)",
            f"buffers = Buffers({'PREFETCH + ' if ready else ''}{COPIES}, shape, device)",
        ]
    order = orders[config.shuffle or "full"]
    on_device = config.transfer == "resident"
    draft.blanks |= {
        "PARAMETERS": parameters,
        "KEEP": "\n".join(keep),
        "ORDER": order,
        "ORDER_TO_DEVICE": "order = order.to(storage.labels.device)  # once for each epoch" if on_device else "",
        "TAKE": "out = self.buffers.take(len(indices))" if draft.fills_buffers else "",
        "OUT": ", out" if draft.fills_buffers else "",
        "NEW_OUT": "out = self.buffers.take(len(indices))"
        if draft.fills_buffers
        else "shape = (len(indices), *storage.shape)\nout = torch.empty(shape, dtype=torch.uint8)",
        # torch would start a pool of OpenMP threads in each thread
        "INITIALIZER": ', "", torch.set_num_threads, (1,)' if config.decoder == "torchvision" else "",
    }
    draft.names.append(f"loader_{config.loader}")
    draft.opening.append(f"loader = Loader(storage, batch_size{arguments})")


def _add_dataloader(draft: Draft) -> None:
    config = draft.config
    options = ["batch_size=batch_size"]
    if draft.form == "samples":
        dataset = "samples"
    else:
        draft.names.append("batches_dataset")
        dataset = "Batches(storage)"
    if config.shuffle == "block":
        draft.names += ["order_block", "order_sampler"]
        options.append(f"sampler=BlockSampler(len(storage.labels), {draft.block})")
    elif config.shuffle != "none":
        options += ["shuffle=True", "generator=torch.Generator().manual_seed(SEED)"]
    if draft.form != "samples":
        options.append("collate_fn=as_it_is")
    if config.workers:
        options += ["num_workers=WORKERS", "prefetch_factor=PREFETCH"]
        if config.persistent_workers:
            options += ["# started once, not for each epoch", "persistent_workers=True"]
        if config.start_method:
            options.append(f'multiprocessing_context="{config.start_method}"')
    if config.pin_memory:
        if config.transfer != "blocking":
            options.append("# by a PyTorch thread; only copies from pinned memory can be queued")
        options.append('pin_memory=device.type == "cuda"')
    draft.opening.append(f"loader = DataLoader(\n    {dataset},")
    draft.opening += [f"    {option}" + ("" if option.startswith("#") else ",") for option in options]
    draft.opening.append(")")
