-- What is wrong: as iswitch/dissect/faults.py, word for word

local function owners_fault(v)  -- of a job whose segments have owners
    local blocks = v.mode == ALL_TO_ALL and v.expected ^ 2 or v.expected
    if v.expected < 1 or v.expected > RANKS then
        return string.format("segments that have owners are divided among 1 to %d workers", RANKS)
    elseif v.segments < 2 or (v.segments - 1) % blocks > 0 then
        return string.format("%d segments are not equal blocks and a closing segment", v.segments)
    elseif v.last * ITEMSIZE[v.dtype] < CLOSING_SIZE then
        return string.format("a closing segment has %d bytes at least", CLOSING_SIZE)
    end
end

local function join_fault(v)
    local not_valid = "%d is not a valid %s"
    if not CODES.type[v.type] then return not_valid:format(v.type, ENUMS.type) end
    local open = v.dtype + v.op + v.mode + v.E + v.last + v.segments == 0
    local has_owners = v.mode >= FIRST_WITH_OWNERS
    if not open then
        for _, name in ipairs({ "dtype", "op", "mode" }) do
            if not CODES[name][v[name]] then
                return "Join: " .. not_valid:format(v[name], ENUMS[name])
            end
        end
        local size = ITEMSIZE[v.dtype]
        if v.segments < 1 or v.last > v.E then
            return "a vector has at least one segment, and the last is not above E"
        elseif v.last == 0 and v.segments > 1 then
            return "only the single segment of an empty vector may be empty"
        elseif not (", " .. OPERANDS[v.op] .. ","):find(" " .. CODES.dtype[v.dtype] .. ",", 1, true) then
            return string.format("%s is of %s, not of %s", CODES.op[v.op], OPERANDS[v.op],
                CODES.dtype[v.dtype])
        end
        local fault = has_owners and owners_fault(v)
        if fault then return fault end
        if SEG_SIZE + v.E * size > MAX_PAYLOAD then
            return string.format("E = %d does not fit a UDP datagram; use %d at most", v.E,
                math.floor((MAX_PAYLOAD - SEG_SIZE) / size))
        end
    end
    if v.workers and v.type ~= SWITCH then return "only a switch stands for several workers" end
    if open and v.type ~= CONTROLLER then return "only a controller may leave the shape open" end
    if has_owners and (not has_flag(v, WHOLE) or has_flag(v, PARTIAL)) then
        return "a job whose segments have owners is whole"
    end
    if v.flags % PAST_SLOTS >= FIRST_OF_SLOTS and (not has_flag(v, WHOLE) or has_flag(v, PARTIAL)
        or v.mode ~= SYNCHRONOUS or v.type == CONTROLLER) then
        return "only a whole synchronous job can have slots"
    end
    if has_flag(v, PARTS) and (v.type ~= SWITCH or not has_flag(v, WHOLE) or has_flag(v, PARTIAL)
        or has_flag(v, REPRODUCIBLE) or v.mode ~= SYNCHRONOUS
        or v.flags % PAST_SLOTS >= FIRST_OF_SLOTS) then
        return "only a switch sends parts, of a whole job without slots or order"
    end
    if (v.unranked or 0) > RANKS then return string.format("there are no %d ranks", v.unranked) end
    if v.rank and v.rank ~= NO_RANK then
        if v.type ~= WORKER then return "only a worker has a rank" end
        local known = has_flag(v, NEW) and v.expected > 0
        local most = known and math.min(RANKS, v.expected) or RANKS
        if v.rank >= most then return string.format("no such rank: %d", v.rank) end
    end
end

local function ranks_fault(v)
    local size, longest = v.ranks and v.ranks:len() or 0, BITMAPS[#BITMAPS]
    local fits = size == 0
    for i = size == longest and BITMAPS[#BITMAPS - 1] or 0, size - 1 do
        fits = fits or v.ranks:get_index(i) > 0
    end
    if (v.unranked or 0) > 0 then fits = size == longest end
    if not fits then return "a bitmap of ranks has another length than it has to have" end
end

local function data_fault(index, size, known)
    local shape = known and known.shape
    if not shape then
        local dtype = iswitch.prefs.dtype
        if size % ITEMSIZE[dtype] ~= 0 then
            return string.format("%d bytes are no whole number of %s elements", size, CODES.dtype[dtype])
        end
    elseif index >= shape.segments then
        return string.format("segment %d of a vector of %d", index, shape.segments)
    else
        local wanted = (index == shape.segments - 1 and shape.tail or shape.packet) - SEG_SIZE
        if known.parts then wanted = wanted + PART_SIZE end
        if size ~= wanted then
            return string.format("segment %d has %d bytes of elements, and should have %d",
                index, size, wanted)
        end
    end
end
