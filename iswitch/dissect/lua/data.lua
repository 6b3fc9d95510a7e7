-- Data

local function half(bits_, fraction, bias)  -- a 16-bit float with so many bits of fraction
    local sign = bits_ >= 0x8000 and -1 or 1
    local scale = 2 ^ fraction
    local exponent = math.floor(bits_ / scale) % (0x8000 / scale)
    local part = bits_ % scale
    if exponent == 0x8000 / scale - 1 then
        return part == 0 and sign * math.huge or 0 / 0
    elseif exponent == 0 then
        return sign * part / scale * 2.0 ^ (1 - bias)
    end
    return sign * (1 + part / scale) * 2.0 ^ (exponent - bias)
end

local READ = {
    float32 = function(range) return range:le_float() end,
    float16 = function(range) return half(range:le_uint(), 10, 15) end,
    bfloat16 = function(range) return half(range:le_uint(), 7, 127) end,
    int32 = function(range) return range:le_int() end,
    float64 = function(range) return range:le_float() end,
    int64 = function(range) return range:le_int64():tonumber() end,
    uint8 = function(range) return range:uint() end,
    bool = function(range) return range:uint() end,
}

local function value_of(range, name)  -- of a pair: its value, without the index
    local value = name:match("^(%w+)_")
    if value then return value_of(range:range(0, range:len() / 2), value) end
    return READ[name](range)
end

local function element_text(range, name)
    local value, index = name:match("^(%w+)_(%w+)$")
    if value then
        local half_ = range:len() / 2
        return string.format("(%s, %s)", element_text(range:range(0, half_), value),
            element_text(range:range(half_, half_), index))
    end
    if name == "int64" then return tostring(range:le_int64()) end  -- a number has 53 bits
    local number = READ[name](range)
    if number ~= number then return "nan" end
    local form = name == "float64" and "%.16g" or name:find("float") and "%.7g" or "%d"
    return string.format(form, number)
end

local function add_elements(tree, tvb, offset, size, dtype)
    local name, width = CODES.dtype[dtype], ITEMSIZE[dtype]
    local count = math.floor(size / width)
    if size == 0 then
        return
    end
    local item = tree:add(f.data, tvb(offset, size))
    if size % width ~= 0 then
        item:set_text(string.format("Elements: %d bytes, not %s", size, name))
        return
    end
    local first = {}
    for i = 0, math.min(count, SHOWN) - 1 do
        table.insert(first, element_text(tvb(offset + i * width, width), name))
    end
    item:set_text(string.format("Elements: %d %s: %s%s", count, name, table.concat(first, ", "),
        count > SHOWN and ", ..." or ""))
    if not (tree.visible or tree:referenced(f.elements)) then return end
    for start = 0, count - 1, LINE do
        local stop, texts = math.min(start + LINE, count), {}
        local line = item
        if count > SHOWN then
            line = item:add(tvb(offset + start * width, (stop - start) * width), "")
        end
        for i = start, stop - 1 do
            local range = tvb(offset + i * width, width)
            table.insert(texts, element_text(range, name))
            line:add(f.elements, range, value_of(range, name)):set_hidden()
        end
        if count > SHOWN then
            line:set_text(string.format("[%d] %s", start, table.concat(texts, "  ")))
        end
    end
end

local function seg_after(head, count)  -- the bytes of the Seg so many segments further
    local index = head.index + count
    local round = (head.round + math.floor(index / 2 ^ 32)) % 2 ^ 32
    index = index % 2 ^ 32
    local bytes = {}
    for _, word in ipairs({ round, index }) do
        for shift = 3, 0, -1 do
            table.insert(bytes, string.char(math.floor(word / 256 ^ shift) % 256))
        end
    end
    return table.concat(bytes)
end

local function stride(raw)  -- bytes from one Seg to the next
    if #raw <= MTU_PAYLOAD then return #raw end
    local function word(at)
        local a, b, c, d = raw:byte(at, at + 3)
        return ((a * 256 + b) * 256 + c) * 256 + d
    end
    local head = { round = word(1), index = word(5) }
    local found = raw:find(seg_after(head, 1), SEG_SIZE + 1, true)
    while found do
        local size, fits = found - 1, true
        fits = math.ceil(#raw / size) <= MAX_PACKETS
        for start = size, #raw - 1, size do
            fits = fits and raw:sub(start + 1, start + SEG_SIZE) == seg_after(head, start / size)
        end
        if fits then return size end
        found = raw:find(seg_after(head, 1), found + 1, true)
    end
    return #raw
end

local function cut(tvb, known)  -- offset and length of each packet
    local shape, more = known and known.shape, known and known.parts and PART_SIZE or 0
    local length = tvb:reported_len()
    local alone = { { 0, length } }
    if tvb:captured_len() < length or length <= SEG_SIZE then return alone end
    local size = shape and shape.packet + more or stride(tvb:raw())
    local count = math.ceil(length / size)
    if count < 2 or count > MAX_PACKETS then return alone end
    local parts = {}
    for offset = 0, length - 1, size do
        local n = math.min(size, length - offset)
        if shape then
            if n < SEG_SIZE then return alone end
            local index = tvb(offset + 4, 4):uint()
            if index >= shape.segments then return alone end
            local wanted = index == shape.segments - 1 and shape.tail or shape.packet
            if n ~= wanted + more then return alone end
        end
        table.insert(parts, { offset, n })
    end
    return parts
end

local function dissect_packet(tvb, tree, known)
    local length, captured = tvb:reported_len(), tvb:captured_len()
    local kind = known and (known.to_switch and "contribution" or "aggregate") or "data"
    local item = tree:add(iswitch, tvb(), NAME .. " " .. kind)
    if captured < SEG_SIZE then
        if captured < length then
            item:add_proto_expert_info(e.truncated)
            return kind
        end
        item:add_proto_expert_info(e.malformed, SHORT)
        return kind, nil, SHORT
    end
    local round, index = tvb(0, 4):uint(), tvb(4, 4):uint()
    item:append_text(string.format(", round %d, index %d", round, index))
    add_fields(item, tvb, SEG)
    local shape = known and known.shape
    if known then
        item:add(f.job, known.job):set_generated()
        item:add(f.to_switch, known.to_switch):set_generated()
    end
    if shape then
        item:add(f.dtype, shape.dtype):set_generated()
    else
        item:add_proto_expert_info(e.assumed)
    end
    local dtype = shape and shape.dtype or iswitch.prefs.dtype
    local fault
    if captured < length then
        item:add_proto_expert_info(e.truncated)
        captured = captured - (captured - SEG_SIZE) % ITEMSIZE[dtype]
    else
        fault = data_fault(index, length - SEG_SIZE, known)
        if fault then item:add_proto_expert_info(e.malformed, fault) end
    end
    local offset = SEG_SIZE
    if known and known.parts and captured >= SEG_SIZE + PART_SIZE then
        offset = SEG_SIZE + PART_SIZE
        item:append_text(", part of seats 0x" .. tostring(tvb(SEG_SIZE + 4, 8):bytes()))
    end
    add_elements(item, tvb, offset, captured - offset, dtype)
    return kind, round, fault, index
end

local function dissect_data(tvb, pinfo, tree, known)
    local parts = cut(tvb, known)
    local kind, round, index, fault, last
    for i, part in ipairs(parts) do
        local packet = tvb(part[1], math.min(part[2], tvb:captured_len() - part[1])):tvb()
        if #parts == 1 then packet = tvb end
        local kind_, round_, fault_, index_ = dissect_packet(packet, tree, known)
        fault = fault or fault_
        if i == 1 then kind, round, index = kind_, round_, index_ end
        last = index_
    end
    local info = kind:sub(1, 1):upper() .. kind:sub(2)
    if known then info = info .. " job " .. known.job end
    if round then
        local asynchronous = known and known.shape and known.shape.asynchronous
        local what = asynchronous and (known.to_switch and "number" or "version") or "round"
        info = info .. string.format(" %s %d segment", what, round)
        info = info .. (#parts > 1 and string.format("s %d-%d, %d packets", index, last, #parts)
            or " " .. index)
    end
    if fault then info = info .. " [malformed: " .. fault .. "]" end
    pinfo.cols.info = info
end
