-- Control: values by name, and the layout, whether there is a MAC, and what is wrong

local function read(tvb, layout, v)  -- all of a layout, or nothing if that was not captured
    local last = layout[#layout]
    if last and last.offset + last.size > tvb:captured_len() then return false end
    for _, field in ipairs(layout) do
        local key = field.filter == "ack.action" and field.filter or field.name
        if field.codes == "bitmap" or field.codes == "bytes" then
            v[key] = tvb(field.offset, field.size):bytes()
        else
            v[key] = tvb(field.offset, field.size):uint()
        end
    end
    return true
end

local function parse_control(tvb)
    local v, size = {}, tvb:reported_len() - SEG_SIZE
    if size < 0 then return v, {}, false, SHORT end
    if not read(tvb, HEADER, v) then return v, {}, false, nil end
    local layouts = VALUES[v.action]
    if not layouts then return v, {}, false, string.format("unknown action %d", v.action) end
    local keyed = layouts[size - MAC_SIZE] ~= nil
    local layout = layouts[keyed and size - MAC_SIZE or size]
    local fault
    if v.status ~= 0 and v.action ~= ACTION.ACK then
        fault = "only an Ack has a status"
    elseif not layout then
        fault = string.format("%s does not carry %d bytes", CODES.action[v.action]:upper(), size)
    end
    if layout and read(tvb, layout, v) then
        fault = fault or ranks_fault(v)
        if v.action == ACTION.JOIN then fault = fault or join_fault(v) end
    end
    return v, layout or {}, keyed, fault
end

local function join_info(v)
    local text = string.format(" %s %s %s, %d segments of %d", CODES.type[v.type],
        CODES.dtype[v.dtype], CODES.op[v.op], v.segments, v.E)
    if v.rank and v.rank ~= NO_RANK then text = text .. string.format(", rank %d", v.rank) end
    if v.round > 0 and v.flags % 2 == 0 then  -- it does not stand at this round
        text = text .. string.format(", %d rounds left", v.round)
    end
    return v.segments > 0 and text or " " .. CODES.type[v.type]
end

local function control_info(v, fault)
    local name = CODES.action[v.action] or ("action " .. tostring(v.action))
    local text = string.format("%s job %d #%d", name, v.job, v.request)
    if fault then return text .. " [malformed: " .. fault .. "]" end
    if v.action == ACTION.ACK and v["ack.action"] then
        name = CODES.action[v["ack.action"]] or tostring(v["ack.action"])
        text = string.format("Ack of %s job %d #%d: %s%s", name, v.job, v.request,
            CODES.status[v.status] or tostring(v.status),
            v.rank < RANKS and string.format(", rank %d", v.rank) or "")
        return text .. string.format(", round %d", v.round)
    elseif v.action == ACTION.JOIN and v.segments then
        return text .. join_info(v)
    elseif v.count then
        local last = v.index + v.count - 1
        return text .. string.format(" round %d segment", v.round) ..
            (last > v.index and string.format("s %d-%d", v.index, last) or " " .. v.index)
    elseif v.threshold then
        return text .. string.format(" H %d", v.threshold)
    elseif v.round then
        return text .. string.format(" round %d", v.round)
    end
    return text
end

local function ranks_in(bytes)  -- the numbers of the bits that are set
    local names = {}
    for i = 0, bytes:len() - 1 do
        local byte = bytes:get_index(i)
        for bit = 0, 7 do
            if math.floor(byte / 2 ^ bit) % 2 == 1 then table.insert(names, tostring(8 * i + bit)) end
        end
    end
    return table.concat(names, ", ")
end

local function add_fields(tree, tvb, layout)
    local parent = tree
    for _, field in ipairs(layout) do
        if field.offset + field.size > tvb:captured_len() then return end
        local range = tvb(field.offset, field.size)
        local is_seg = field.name == "round" and layout[2] and layout[2].name == "index"
        if is_seg and field.offset + SEG_SIZE <= tvb:captured_len() then
            local seg = tvb(field.offset, SEG_SIZE)
            parent = tree:add(f.seg, seg)
            parent:set_text(string.format("Seg: round %d, index %d", range:uint(),
                tvb(field.offset + 4, 4):uint()))
        end
        local item = (field.name == "round" or field.name == "index") and parent or tree
        item = item:add(f[field.filter], range)
        if field.codes == "bitmap" then item:set_text("Ranks: " .. ranks_in(range:bytes())) end
        if field.codes == "flags" then
            for _, flag in ipairs(bits) do item:add(flag.field, range) end
        end
    end
end

local function add_missing(tree, tvb, v)
    local names = {}
    for i, word in ipairs({ v.contributors, v.threshold }) do
        for bit = 0, 31 do
            if math.floor(word / 2 ^ bit) % 2 == 1 then
                table.insert(names, tostring(bit + 32 * (i - 1)))
            end
        end
    end
    local value = UInt64.new(v.contributors, v.threshold)
    local item = tree:add(f.missing, tvb(12, 12), value):set_generated()
    item:set_text("Missing contributions of seats: " ..
        (#names > 0 and table.concat(names, ", ") or "none"))
end

local function add_links(tree, frame)
    if frame.request_in then
        tree:add(f.request_in, frame.request_in):set_generated()
        local seconds = math.floor(frame.ack_time)
        local nanoseconds = math.floor((frame.ack_time - seconds) * 1e9 + 0.5)
        tree:add(f.ack_time, NSTime.new(seconds, nanoseconds)):set_generated()
    end
    if frame.response_in then tree:add(f.response_in, frame.response_in):set_generated() end
    if frame.repeat_of then
        tree:add(f.repeat_of, frame.repeat_of):set_generated()
        tree:add_proto_expert_info(e.repeated)
    end
    if frame.unmatched then tree:add_proto_expert_info(e.unmatched) end
end

local function dissect_control(tvb, pinfo, tree, frame, source, destination, in_error)
    local v, layout, keyed, fault = parse_control(tvb)
    local whole = tvb:captured_len() == tvb:reported_len()
    if whole and not fault and not in_error then note(frame, source, destination, v, pinfo) end
    local has_header = v.request ~= nil
    local info = has_header and control_info(v, fault)
        or "[" .. (fault and "malformed: " .. fault or TRUNCATED) .. "]"
    pinfo.cols.info = info
    local item = tree:add(iswitch, tvb(), NAME .. " " .. info)
    if has_header then
        add_fields(item, tvb, HEADER)
        add_fields(item, tvb, layout)
        if v.action == ACTION.ACK and v["ack.action"] == ACTION.HELP and v.contributors
            and v["ack.known"] ~= COUNTED then
            add_missing(item, tvb, v)
        end
    end
    if keyed and whole then item:add(f.mac, tvb(tvb:reported_len() - MAC_SIZE, MAC_SIZE)) end
    if frame.to_switch ~= nil then item:add(f.to_switch, frame.to_switch):set_generated() end
    add_links(item, frame)
    if not whole then
        item:add_proto_expert_info(e.truncated)
    elseif fault then
        item:add_proto_expert_info(e.malformed, fault)
    elseif v.action == ACTION.ACK and v.status ~= 0 then
        item:add_proto_expert_info(e.refused, "Refused: " .. (CODES.status[v.status] or v.status))
    end
end
